// The ops whose steps are heaviest in every order: where orders are bounded and divided.
//
//   ops up to 32,768       must-live bytes of all                                       O((V + E) V / 64)
//   more                   of the 1,024 whose steps are heaviest in program order       O((V + E) log V)
//
// In program order the heaviest steps of a training step are those around the loss, as in any other order; so little is
// missed by looking only there, and a million ops are no trouble.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "order/problem.h"

namespace stowage {

struct CriticalOp {
  std::int32_t op = -1;
  std::int64_t bytes = 0;  // its step is at least this in every order
};

// Heaviest first, smaller ids first among equals. `work` is reduced by what the sweep costs.
std::vector<CriticalOp> critical_ops(const OrderProblem& problem, std::int64_t& work);

// The heaviest of the 512 ops whose `known` bytes are largest: per op, the must-live bytes in a problem that this one
// is a part of. In a part the bytes of an op only grow, and mostly where they were large. Of problems of at most 1,024
// ops: the heaviest.
CriticalOp most_critical_op(const OrderProblem& problem, std::span<const std::int64_t> known, std::int64_t& work);

}  // namespace stowage
