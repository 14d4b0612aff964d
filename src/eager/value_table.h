// The rows behind a Keeper: every known value with its numbers, the clocks, the two copy lanes, and what a chain of
// recomputations costs.
//
//   tick     1     2     3     4          ops of the program, in order
//   now_ns   ├──A──┼─B─┼───C────┼D┤       time inside ops only: waiting and restoring do not move it
//
// chain_ns(v) follows recipes up to what is there:   d(own 5) ← c gone(own 3) ← b resident      chain(d) = 5 + 3
//                                                              └ a on the host (copy in 2)                 + 2
// O(ancestors that are not there), cut off after kMostAncestors, from where on each counts as often as was seen: a
// chain so long is never cheap.
#pragma once

#include <cstdint>
#include <vector>

#include "stowage/eager.h"

namespace stowage::eager {

class ValueTable {
 public:
  explicit ValueTable(const Options& options);

  ValueId add(std::int64_t bytes, bool evictable);
  void remove(ValueId id);
  [[nodiscard]] Value& operator[](ValueId id) { return rows_[id]; }
  [[nodiscard]] const Value& operator[](ValueId id) const { return rows_[id]; }
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  [[nodiscard]] std::size_t in_use() const { return rows_.size() - free_.size(); }
  [[nodiscard]] const Options& options() const { return options_; }
  void set_limit(std::int64_t limit_bytes) { options_.limit_bytes = limit_bytes; }

  // May it be let go at all, pins aside?
  [[nodiscard]] bool candidate(ValueId id) const;
  // And now? Soft pins count unless `last_resort`.
  [[nodiscard]] bool free_to_go(ValueId id, bool last_resort) const {
    const Value& v = rows_[id];
    return v.pins == 0 && (last_resort || v.soft_pins == 0);
  }
  [[nodiscard]] bool may_drop(ValueId id) const {
    return rows_[id].recomputable && options_.release != Release::kSwapOnly;
  }
  [[nodiscard]] bool may_swap() const { return options_.release != Release::kDropOnly; }
  [[nodiscard]] bool there(ValueId id) const { return rows_[id].residence == Residence::kResident; }

  [[nodiscard]] std::int64_t chain_ns(ValueId id) const;

  // The link. A lane copies one value after the other; what is on its way takes copy_ns of it, less what has passed.
  [[nodiscard]] std::int64_t copy_ns(std::int64_t bytes) const {
    return options_.link_latency_ns + static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_ns_);
  }
  [[nodiscard]] std::int64_t out_queue_ns() const { return out_bytes == 0 ? 0 : copy_ns(out_bytes); }
  [[nodiscard]] std::int64_t in_queue_ns() const { return in_bytes == 0 ? 0 : copy_ns(in_bytes); }
  void measured_copy(std::int64_t bytes, std::int64_t took_ns);  // alone on its lane, and waited for
  [[nodiscard]] double bytes_per_ns() const { return bytes_per_ns_; }

  std::int64_t tick = 0;
  std::int64_t now_ns = 0;
  std::int64_t out_bytes = 0;  // on their way out, and in
  std::int64_t in_bytes = 0;
  int fetches = 0;  // in flight
  int copies_out = 0;
  std::int64_t resident_bytes = 0;
  std::int64_t candidate_bytes = 0;
  std::int64_t covered_bytes = 0;    // of candidates that the host has, or gets
  std::int64_t unlimited_bytes = 0;  // what would be resident without a limit
  std::int64_t most_unlimited_bytes = 0;
  Counters counters;

 private:
  static constexpr int kMostAncestors = 64;
  static constexpr std::int64_t kSmallestMeasure = 1 << 16;  // shorter copies measure latency

  Options options_;
  double bytes_per_ns_;
  IdVector<ValueId, Value> rows_;
  std::vector<ValueId> free_;
  mutable IdVector<ValueId, std::uint32_t> seen_;  // scratch of chain_ns: number of the walk that met the row
  mutable std::uint32_t walk_ = 0;
  mutable std::vector<ValueId> stack_;
};

}  // namespace stowage::eager
