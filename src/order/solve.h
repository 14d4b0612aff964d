// One ordering problem, from contraction to proof. Each stage ends the search when its order meets the bound.
//
//   contraction ─▶ cut bound ─▶ division ─▶ proof: selection, decisions ─▶ branching
//   (contract.h)   (min_cut.h)  (pinch.h)   (select.h, decide.h, prove.h)  (branch.h)
#pragma once

#include <functional>

#include "order/branch.h"
#include "order/contract.h"

namespace stowage {

struct SolveLimits {
  std::int64_t work = 0;              // about a nanosecond a unit; the same on every machine
  std::function<bool()> should_stop;  // outer stop; empty: never
};

// `small` is contracted() of the problem, `start` an order of the whole problem and `bound` proven for it. Never a worse order or bound.
BranchResult solve(const Contracted& small, Ordering start, std::int64_t bound, const SolveLimits& limits);

}  // namespace stowage
