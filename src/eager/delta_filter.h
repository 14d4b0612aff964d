// DELTA's filter: let go of the value that is large and has not been used for long.
//
// Statement: among the candidates, the least h = 1 / (m s), for m bytes and s ticks since the last access.
//
//   m  ████████            s  ▁▁▁▁▁▁▁▁▁▁▁▁  wins against    m  ████████████████   s ▁▁▁
//
// What it costs to get the value back does not count: that is left to the director (delta_director.h). Values below 1 %
// of the mean size are passed over while there are others.
//
// O(1) notes, pick O(distinct sizes + looks) (staleness_index.h).
// Tang et al., "DELTA: Dynamically optimizing GPU memory beyond tensor recomputation", arXiv 2203.15980 (2022).
// Differs: their release scans all tensors for each victim; the answer here is the same one.
#pragma once

#include "eager/policy.h"
#include "eager/staleness_index.h"

namespace stowage::eager {

class DeltaFilter : public Filter {
 public:
  explicit DeltaFilter(ValueTable& table) : table_(table), index_(table) {}

  void entered(ValueId id) override {
    index_.insert(id, static_cast<double>(table_[id].bytes));
    bytes_ += table_[id].bytes;
    ++members_;
  }
  void left(ValueId id) override {
    index_.erase(id);
    bytes_ -= table_[id].bytes;
    --members_;
  }
  void accessed(ValueId id) override { index_.touch(id); }

  std::optional<ValueId> pick(bool last_resort) override {
    if (members_ == 0) return std::nullopt;
    const std::int64_t small = bytes_ / members_ / 100;
    if (const auto found = index_.best(last_resort, small)) return found;
    return small > 0 ? index_.best(last_resort) : std::nullopt;
  }

 private:
  ValueTable& table_;
  StalenessIndex index_;
  std::int64_t bytes_ = 0, members_ = 0;
};

}  // namespace stowage::eager
