// One ordering problem, from contraction to proof. Each stage ends the search when its order meets the bound.
//
//   contraction ─▶ cut bound ─▶ ┌▶ projection ─▶ decisions ─┐    The two complement each other: projection needs few ops to matter,
//   (contract.h)   (min_cut.h)  │  (projection.h) (prove.h) │    decisions need few states to be open. So they take turns, each with
//                               └───────────────────────────┘    more work than before.
#pragma once

#include <functional>

#include "order/contract.h"
#include "order/ordering.h"

namespace stowage {

struct SolveLimits {
  std::int64_t work = 0;              // about a nanosecond a unit; the same on every machine
  std::function<bool()> should_stop;  // outer stop; empty: never
};

// `small` is contracted() of the problem, `start` an order of the whole problem and `bound` proven for it. Never a worse order or bound.
BoundedOrder solve(const Contracted& small, Ordering start, std::int64_t bound, const SolveLimits& limits);

}  // namespace stowage
