// The allocators under every tensor: they count bytes, watch what an op allocates, and answer from a plan when one is
// armed.
//
//        allocate(n) ──► script armed on this thread?  ── yes, next entry is n ──► arena + offset      (a hit)
//                              │ no / no match (a miss)
//                              ▼
//                        previous allocator; on the CPU with a 64-byte header { n } in front, so that a free knows its size
//
// The CPU's is installed once, at import, and never removed: live storages hold its deleter. Threads that are not armed
// only pay for the header and two relaxed atomic additions. Every DataPtr has context == data, as raw_allocate users
// (oneDNN) require. That of an accelerator (accelerator.cpp) is installed when the first step comes that lies there.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace stowage::runtime {

class AllocationScript;

// What the calling thread's code asked of the allocator, in order.
struct AllocationEvent {
  bool is_free = false;
  std::int64_t bytes = 0;  // of an allocation
  const void* address = nullptr;
};

// While alive, the calling thread's allocations and frees of one kind of memory are appended to `events`.
class WatchAllocations {
 public:
  explicit WatchAllocations(std::vector<AllocationEvent>& events, c10::DeviceType of = c10::DeviceType::CPU);
  ~WatchAllocations();
  WatchAllocations(const WatchAllocations&) = delete;
  WatchAllocations& operator=(const WatchAllocations&) = delete;

 private:
  std::vector<AllocationEvent>* previous_;
  c10::DeviceType previous_type_;
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

// While alive, the calling thread's allocations are answered by `script`, where they are of its arena's device.
class ArmScript {
 public:
  explicit ArmScript(AllocationScript& script);
  ~ArmScript();
  ArmScript(const ArmScript&) = delete;
  ArmScript& operator=(const ArmScript&) = delete;

 private:
  AllocationScript* previous_;
};

// While alive, no script answers the calling thread's allocations, and nobody notes them: the runtime needs memory for
// itself.
class Unarmed {
 public:
  Unarmed();
  ~Unarmed();
  Unarmed(const Unarmed&) = delete;
  Unarmed& operator=(const Unarmed&) = delete;

 private:
  AllocationScript* script_;
  std::vector<AllocationEvent>* events_;
};

// Takes the place of the CPU allocator, whoever put it there; that one serves what no plan does. Idempotent; call
// before the tensors of interest are made.
void install_allocator();

// Throws Error, which says why, where it could not, or another library has taken the place since.
void require_allocator();

enum class BlockOrigin : std::uint8_t { kOurs, kEarlier, kForeign };

// Who allocated a storage: one of these allocators, the one before it, or somebody else (NumPy, mmap).
BlockOrigin block_origin(void* data, void (*deleter)(void*));
// Memory that somebody else than PyTorch has made, and may have: of NumPy, of a buffer of Python's.
bool of_another_library(const c10::Storage& storage);

// What an allocator tells of its blocks, and asks, on the thread that allocates or frees.
namespace front {

// The planned address for a block, or nullptr: the allocator below is to serve it.
void* from_plan(c10::DeviceType type, std::size_t bytes);
void allocated(c10::DeviceType type, std::size_t bytes, const void* data);
// Before a free. True: the block lies in an arena; nobody else frees it.
bool freed(c10::DeviceType type, const void* data);
// Whose blocks this thread's plan places; the CPU's where none is armed.
c10::DeviceType armed_for();

// The deleters of an accelerator's front, and of who lies below it, for block_origin().
void know_deleters(void (*ours)(void*), void (*earlier)(void*));

}  // namespace front

// ---- Bytes of one memory: the host's, or a device's

inline const c10::Device kHost{c10::DeviceType::CPU};

// Keeps live bytes within a limit, and hears of the death of blocks that it has marked.
class Guardian {
 public:
  virtual ~Guardian() = default;
  // `bytes` more do not fit: frees something, or throws. Called until they fit; never from inside itself.
  virtual void make_room(std::int64_t bytes) = 0;
  // The allocator below has no `bytes` in one piece, although the limit has: frees something. False: nothing can go.
  virtual bool spare(std::int64_t bytes) = 0;
  // The block is about to be freed. True: the guardian has taken it instead.
  virtual bool block_dies(void* data, void* mark) noexcept = 0;
};

// From now on, no allocation there takes live_bytes() past the limit. One guardian at a time; nullptr: none.
void set_guardian(Guardian* guardian, std::int64_t limit_bytes, c10::Device where = kHost);
void set_limit(std::int64_t limit_bytes, c10::Device where = kHost);
[[nodiscard]] Guardian* guardian_of(c10::Device where);

// What is live beside the allocator's own blocks, an arena: adds to the live bytes, never past the limit (room is made
// before).
void count_bytes(std::int64_t bytes, c10::Device where = kHost);
void uncount_bytes(std::int64_t bytes, c10::Device where = kHost);

// Where the guardian may note something in a block; nullptr when it is not one of this allocator, or lies in an arena.
void** block_mark(void* data, void (*deleter)(void*));

// Who asked for such a block (owners.h), which may have lain in another one before.
std::int32_t block_owner(void* data, void (*deleter)(void*));
void give_block_to(void* data, void (*deleter)(void*), std::int32_t owner);

// While alive, tells the calling thread's new blocks apart: each gets a number, which dies with it. (An address alone
// would not do: it is used again.) Under an eager budget the content of a storage can leave its block and come back in
// another one: it keeps its number, and where it lay first.
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
  ~LiveBlocks();  // after stop(), on any thread
  // No longer told of blocks. On the thread that made this.
  void stop();
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
  [[nodiscard]] bool alive(std::int64_t number) const {
    return number != kOlder && alive_[static_cast<std::size_t>(number)];
  }

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
  bool stopped_ = false;
};

// What an eager budget tells the calling thread's LiveBlocks, if there are any: a storage's content leaves its block,
// which is freed next; it is back, in a new one; the storage dies meanwhile.
void content_leaves(const void* data, const void* storage);
void content_returns(const void* storage, const void* data);
void content_dies_away(const void* storage);

// Bytes that tensors asked for since install, arenas included: live now, and the largest so far since reset_peak().
std::int64_t live_bytes(c10::Device where = kHost);
std::int64_t peak_bytes(c10::Device where = kHost);
void reset_peak(c10::Device where = kHost);
// To at least that: what was so before something called reset_peak().
void raise_peak(std::int64_t bytes, c10::Device where = kHost);

}  // namespace stowage::runtime
