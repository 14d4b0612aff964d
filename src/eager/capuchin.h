// Capuchin: swap what stays unused longest beyond its own copies; once no swap can hide, recompute what frees most
// bytes a second.
//
//   use ──────┤ out ▒▒▒▒▒ ├────── free time ──────┤ in ▒▒▒▒▒ ├── next use        FT = next use - now - out - in
//
// Statement: among the candidates whose next use earlier iterations showed, the largest FT, swapped, while FT >= 0.
// Else the overhead of that swap, -FT, against recomputing the candidate of the largest memory saving per second, m / c
// with c along evicted ancestors: the smaller one wins. Swapped values come back at their in-trigger, the copy time
// before the next use; when the program has to wait all the same, all triggers move ahead by 5 % of the copy time.
// Before anything repeats (the paper's passive mode): least recently used, swapped.
//
// O(log n) notes, pick O(kMostLooks (log n + ancestors gone)).
// Peng et al., "Capuchin: tensor-based GPU memory management for deep learning", ASPLOS 2020. Differs: decisions are
// made when memory is asked for, with the same ranking, instead of once for the whole iteration after a measured one;
// one lead for all triggers.
#pragma once

#include <functional>

#include "eager/next_use_heap.h"
#include "eager/policy.h"
#include "eager/staleness_index.h"

namespace stowage::eager {

class Capuchin : public Policy {
 public:
  Capuchin(ValueTable& table, AccessHistory& history) : table_(table), history_(history), by_age_(table) {}

  void entered(ValueId id) override;
  void left(ValueId id) override;
  void accessed(ValueId id) override;
  void released(ValueId id, How how) override;
  void restored(ValueId id) override { away_.erase(id); }
  void died(ValueId id) override { away_.erase(id); }
  void forgotten(ValueId id) override { away_.erase(id); }
  void waited(ValueId) override;
  std::optional<ValueId> pick(bool last_resort) override;
  How choose(ValueId id) override;
  Advice advise(std::int64_t room_bytes) override;

 private:
  static constexpr int kMostLooks = 32;
  static constexpr double kLeadStep = 0.05, kMostLead = 4;

  [[nodiscard]] std::int64_t free_ns(ValueId id) const;

  ValueTable& table_;
  AccessHistory& history_;
  StalenessIndex by_age_;
  NextUseHeap<std::greater<>> furthest_;  // candidates
  NextUseHeap<std::less<>> away_;         // swapped ones
  ValueId picked_;
  How how_ = How::kSwap;
  double lead_ = 1;
};

}  // namespace stowage::eager
