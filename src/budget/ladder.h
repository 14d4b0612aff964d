// A larger budget is never slower: capacities on a ladder that the graph alone decides.
//
//   bytes   top ──┬── the least arena found without recomputation: costs nothing
//                 │  rung n-1                          A budget may use the plan of every rung at or below it and takes the fastest.
//      budget ····│··                                  The candidates only grow with the budget, so the time can only fall. In
//                 │                                    graphs of up to 300 ops the plan of the rung above is one where it
//                 │                                    needs no more than the budget: the rungs are the same for all budgets.
//                 │  rung 2   ◀── looked at first      Rungs further down are looked at while their proven bound leaves hope
//                 │  rung 1   ◀── then this, …         of a faster plan (covering is a heuristic, and layouts have luck), in
//                 │                                    graphs of more than 300 ops 8 of them, and none below one without a plan:
//                 │                                    there a plan further down that is faster still would go unseen.
//                 │                                    Plans that are looked at are improved (improve.h), in such graphs the
//                 │                                    first few.
//         floor ──┴── what one op needs
//
// The least rung with a plan is searched by halving, then between rungs, so that "smallest feasible" depends on the
// graph alone, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "budget/fit_budget.h"
#include "budget/time_bound.h"

namespace stowage::budget {

class Ladder {
 public:
  // Capacities in bytes of arena: nothing fits below `floor`, and `top` costs nothing.
  Ladder(const Recipes& recipes, std::span<const std::vector<OpId>> orders, std::int64_t floor, std::int64_t top,
         const FitOptions& options);

  // The fastest plan of an arena of at most `capacity`; none: the smallest found is larger.
  std::optional<Fitted> best_within(std::int64_t capacity);
  // The least capacity of a rung that has a plan; `top` when none has.
  std::int64_t smallest();
  // Proven, of all plans within `capacity`.
  std::int64_t bound_ns(std::int64_t capacity) { return bound_.at(capacity); }
  std::int64_t least_capacity() { return std::max(floor_, bound_.least_capacity()); }

 private:
  [[nodiscard]] std::int64_t rung(std::int32_t i) const;
  const std::optional<Fitted>& at(std::int64_t capacity);
  // at(), improved.
  const std::optional<Fitted>& improved_at(std::int64_t capacity);
  [[nodiscard]] bool stopped() const { return options_.should_stop && options_.should_stop(); }

  const Recipes& recipes_;
  std::span<const std::vector<OpId>> orders_;
  std::int64_t floor_, top_;
  FitOptions options_;
  std::int32_t rungs_;
  TimeBound bound_;
  std::map<std::int64_t, std::optional<Fitted>> fitted_;  // by capacity
  std::set<std::int64_t> improved_;                       // capacities
  std::optional<std::int64_t> smallest_;
};

}  // namespace stowage::budget
