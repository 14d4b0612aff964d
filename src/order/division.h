// Where to divide an order, and how to repair a division that strains its parts.
//
//   before v        after v
//   ┌────────┐  v  ┌────────┐      v is the op whose step is largest in every order, the state S before it a minimum cut.
//   │   w ◀──┼─────┼── w?   │      Then each part has a must-live bound of its own. Where an op w of a part breaks the limit,
//   └────────┘     └────────┘      the state in which w runs best says what it misses:
//
//     w before v, its best state holds v:    w goes after v           w before v, otherwise:  S takes that state in
//     w after v,  its best state lacks v:    w goes before v          w after v, otherwise:   S gives up what that state lacks
//
// and the cut is taken again under those pins. The division with the smallest of max(step of v, bounds of both parts)
// stays. Each try costs two must-live sweeps and two cuts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "order/min_cut.h"
#include "order/problem.h"

namespace stowage {

struct Division {
  std::int32_t v = -1;
  std::vector<char> before;  // per op: runs before v; empty when work ran out
  std::int64_t bound = 0;    // no order that keeps to the division has a smaller peak
  std::int32_t worst = -1;   // the op whose step is at least `bound` then
};

// `problem` has at least one op, and weights with at most one opener; `known` as in most_critical_op().
// `repairs` is the number of times that a strained division is taken again.
struct DivisionRule {
  CutSide side = CutSide::kSmallest;
  int repairs = 12;
};
Division divide(const OrderProblem& problem, std::span<const std::int64_t> known, std::int64_t limit, DivisionRule rule,
                std::int64_t& work);

}  // namespace stowage
