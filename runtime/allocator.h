// The CPU allocator under every tensor: counts bytes, watches what an op allocates, and answers from a plan when one is armed.
//
//        allocate(n) ──► script armed on this thread?  ── yes, next entry is n ──► arena + offset      (a hit)
//                              │ no / no match (a miss)
//                              ▼
//                        previous allocator, with a 64-byte header { n } in front, so that a free knows its size
//
// Installed once, at import, and never removed: live storages hold its deleter. Threads that are not armed only pay for the
// header and two relaxed atomic additions. Every DataPtr has context == data, as raw_allocate users (oneDNN) require.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace stowage::runtime {

// What the calling thread's code asked of the allocator, in order.
struct AllocationEvent {
  bool is_free = false;
  std::int64_t bytes = 0;  // of an allocation
  const void* address = nullptr;
};

// One planned answer: an allocation of exactly `bytes` gets `offset` in the arena.
struct PlannedAllocation {
  static constexpr std::int64_t kUnplanned = -1;  // it outlives its op in a way that no plan knows: always a miss

  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  bool takes_over = false;  // the block that lies there is still live, and dies with the op; the two are counted once
};

// One contiguous range that plans place buffers in. Counted as one live block of the allocator, of exactly bytes().
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes the arena at least `bytes` large; what it held is lost. Must not be called while blocks of it are live.
  void reserve(std::int64_t bytes);
  // Gives the memory back until the next reserve().
  void release();
  // Fills it with a byte; for tests of plans that must not depend on what was there.
  void fill(int value);

  [[nodiscard]] char* base() const { return base_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  char* base_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t mapped_bytes_ = 0;
  int slot_ = -1;
};

// Answers the calling thread's allocations from a list of planned ones while armed. Owned by the executor.
class AllocationScript {
 public:
  AllocationScript(Arena& arena, std::int64_t align) : arena_(arena), align_(align) {}

  // The next op's list; what is left of the previous one counts as skipped.
  void begin_op(const PlannedAllocation* first, std::size_t count);
  void end_op();

  // Address for an allocation of n bytes, or nullptr for a miss. Entries before the first of the right size are skipped.
  void* take(std::size_t n);
  bool give_back(const void* address);  // false when the address is not in the arena

  void reset_counters();
  [[nodiscard]] std::int64_t misses() const { return misses_; }
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] std::int64_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::size_t live_blocks() const { return live_.size() + heirs_.size(); }

 private:
  void add_live(const void* address, std::int64_t padded_bytes);

  Arena& arena_;
  std::int64_t align_;
  const PlannedAllocation* next_ = nullptr;
  const PlannedAllocation* end_ = nullptr;
  std::unordered_multimap<const void*, std::int64_t> live_;  // address -> padded bytes
  std::unordered_map<const void*, std::int64_t> heirs_;      // the same, of blocks that count once what lies there is given back
  std::int64_t misses_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

// While alive, the calling thread's allocations and frees are appended to `events`.
class WatchAllocations {
 public:
  explicit WatchAllocations(std::vector<AllocationEvent>& events);
  ~WatchAllocations();
  WatchAllocations(const WatchAllocations&) = delete;
  WatchAllocations& operator=(const WatchAllocations&) = delete;

 private:
  std::vector<AllocationEvent>* previous_;
};

// While alive, the calling thread's events are not noted: what happens is no part of the op that is being watched.
class PauseWatching {
 public:
  PauseWatching();
  ~PauseWatching();
  PauseWatching(const PauseWatching&) = delete;
  PauseWatching& operator=(const PauseWatching&) = delete;

  // While alive, they are noted again: the op itself runs.
  class Resume {
   public:
    explicit Resume(const PauseWatching& pause);
    ~Resume();
    Resume(const Resume&) = delete;
    Resume& operator=(const Resume&) = delete;
  };

 private:
  std::vector<AllocationEvent>* events_;
};

// While alive, the calling thread's allocations are answered by `script`.
class ArmScript {
 public:
  explicit ArmScript(AllocationScript& script);
  ~ArmScript();
  ArmScript(const ArmScript&) = delete;
  ArmScript& operator=(const ArmScript&) = delete;

 private:
  AllocationScript* previous_;
};

// Replaces the CPU allocator. Idempotent; call before the tensors of interest are made.
void install_allocator();

enum class BlockOrigin : std::uint8_t { kOurs, kEarlier, kForeign };

// Who allocated a storage: this allocator, the one before it (before import), or somebody else (NumPy, mmap).
BlockOrigin block_origin(void* data, void (*deleter)(void*));

// Keeps live bytes within a limit, and hears of the death of blocks that it has marked.
class Guardian {
 public:
  virtual ~Guardian() = default;
  // `bytes` more do not fit: frees something, or throws. Called until they fit; never from inside itself.
  virtual void make_room(std::int64_t bytes) = 0;
  // The block is about to be freed. True: the guardian has taken it instead.
  virtual bool block_dies(void* data, void* mark) noexcept = 0;
};

// From now on, no allocation takes live_bytes() past the limit. One guardian at a time; nullptr: none.
void set_guardian(Guardian* guardian, std::int64_t limit_bytes);
void set_limit(std::int64_t limit_bytes);

// Where the guardian may note something in a block; nullptr when it is not one of this allocator, or lies in an arena.
void** block_mark(void* data, void (*deleter)(void*));

// While alive, tells the calling thread's new blocks apart: each gets a number, which dies with it. (An address alone would not do:
// it is used again.) Under an eager budget the content of a storage can leave its block and come back in another one: it keeps its
// number, and where it lay first.
//
//   allocated(a) ─► number 7, a     leaves(a, S) ─► S holds 7, a     returns(S, b) ─► b: number 7, a
class LiveBlocks {
 public:
  static constexpr std::int64_t kOlder = -1;  // not allocated since this began, or already freed

  struct Known {
    std::int64_t number = kOlder;
    const void* first = nullptr;  // address
  };

  LiveBlocks();
  ~LiveBlocks();
  LiveBlocks(const LiveBlocks&) = delete;
  LiveBlocks& operator=(const LiveBlocks&) = delete;

  [[nodiscard]] Known at(const void* data) const {
    const auto it = blocks_.find(data);
    return it == blocks_.end() ? Known{kOlder, data} : it->second;
  }
  // Of a storage whose content has left its block.
  [[nodiscard]] Known away(const void* storage) const {
    const auto it = away_.find(storage);
    return it == away_.end() ? Known{} : it->second;
  }
  [[nodiscard]] bool alive(std::int64_t number) const { return number != kOlder && alive_[static_cast<std::size_t>(number)]; }

  void allocated(const void* data);
  void freed(const void* data);
  void leaves(const void* data, const void* storage);
  void returns(const void* storage, const void* data);
  void dies_away(const void* storage);

 private:
  void forget(std::int64_t number);

  std::unordered_map<const void*, Known> blocks_;
  std::unordered_map<const void*, Known> away_;
  std::vector<bool> alive_;  // by number
  LiveBlocks* previous_;
};

// What an eager budget tells the calling thread's LiveBlocks, if there are any: a storage's content leaves its block, which is freed
// next; it is back, in a new one; the storage dies meanwhile.
void content_leaves(const void* data, const void* storage);
void content_returns(const void* storage, const void* data);
void content_dies_away(const void* storage);

// Bytes that tensors asked for since install, arenas included: live now, and the largest so far since reset_peak().
std::int64_t live_bytes();
std::int64_t peak_bytes();
void reset_peak();
void raise_peak(std::int64_t bytes);  // to at least that: what was so before something called reset_peak()

}  // namespace stowage::runtime
