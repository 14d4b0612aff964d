// The planned answers to the allocations of one op after the other.
//
//   op's list   64 @0 | 256 @1024 | 64 of result 2       allocate(256) takes the second entry, and skips the first
//
// An address in the arena is given back to the script. The memory of a result (what the step hands out) passes to the op's
// block, and is freed as that is.
//
// What a kernel asks for may depend on its data (torch.matrix_exp takes as many terms as the norm wants). So each block is
// watched until it is given back, or vouched for: a result that lies in its planned place. No answer lies over a watched
// block: such an allocation is a miss.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/memory/arena.h"
#include "runtime/memory/pool.h"

namespace stowage::runtime {

// One planned answer: an allocation of exactly `bytes` gets `offset` in the arena, or the memory of a result.
struct PlannedAllocation {
  static constexpr std::int64_t kUnplanned = -1;  // it outlives its op in a way that no plan knows: always a miss
  static constexpr std::int32_t kNoResult = -1;

  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  std::int32_t result = kNoResult;  // position in the script's results; `offset` means nothing then
  bool takes_over = false;  // the block that lies there is still live, and dies with the op; the two are counted once
};

// Answers the calling thread's allocations from a list of planned ones while armed. Owned by the executor.
class AllocationScript {
 public:
  AllocationScript(Arena& arena, std::int64_t align) : arena_(arena), align_(align) {}

  [[nodiscard]] c10::DeviceType device_type() const { return arena_.device_type(); }

  // The next op's list; what is left of it counts as skipped, or, where the op is known to take all of it, as missed:
  // another allocator was asked.
  void begin_op(const PlannedAllocation* first, std::size_t count);
  void end_op(bool takes_all = false);

  // Address for an allocation of n bytes, or nullptr for a miss. Entries before the first of the right size are
  // skipped.
  void* take(std::size_t n);
  // What lies at the address is a result whose planned place is at the offset.
  void vouch(const void* address, std::int64_t offset);
  bool give_back(const void* address);  // false when the address is not in the arena

  // By PlannedAllocation::result. Not counted.
  void set_results(std::vector<c10::DataPtr> results) { results_ = std::move(results); }
  // nullptr: an op has had it.
  [[nodiscard]] const void* result_at(std::size_t position) const { return results_.at(position).get(); }
  // What the op has not asked for; empty where it has.
  c10::DataPtr leave_result(std::size_t position) { return std::exchange(results_[position], {}); }

  // Until it is called with nullptr, all allocations lie in the pool; what has no room there is a miss.
  void use_pool(Pool* pool) { pool_ = pool; }

  // Does a block that is live lie in [from, to)?
  [[nodiscard]] bool any_live(const char* from, const char* to) const;

  // The peak of what comes now, by itself; then of both. Returns the one before.
  std::int64_t restart_peak() { return std::exchange(peak_bytes_, live_bytes_); }
  void resume_peak(std::int64_t before) { peak_bytes_ = std::max(peak_bytes_, before); }

  // So far all memory was asked for as planned, and each op has given back what is no result of its own.
  [[nodiscard]] bool as_planned() const { return misses_ == 0 && watched_.empty(); }

  // So much was live beside it, in scripts of other threads, at one moment.
  void count_beside(std::int64_t peak_bytes, std::int64_t misses, std::int64_t skipped);

  void reset_counters();
  [[nodiscard]] std::int64_t misses() const { return misses_; }
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] std::int64_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::size_t live_blocks() const { return live_.size() + heirs_.size(); }

 private:
  struct Range {
    const char* from = nullptr;
    const char* to = nullptr;
  };

  void add_live(const void* address, std::int64_t padded_bytes);
  [[nodiscard]] bool is_watched(const char* from, const char* to) const;

  Arena& arena_;
  std::int64_t align_;
  Pool* pool_ = nullptr;
  std::vector<c10::DataPtr> results_;
  const PlannedAllocation* next_ = nullptr;
  const PlannedAllocation* end_ = nullptr;
  std::unordered_multimap<const void*, std::int64_t> live_;  // address -> padded bytes
  // The same, of blocks that count once what lies there is given back
  std::unordered_map<const void*, std::int64_t> heirs_;
  std::vector<Range> watched_;
  std::int64_t misses_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace stowage::runtime
