// Lower bounds on the peak over all plans without recomputation and swapping, when taken of a relaxed_problem()
// (reuse_pairs.h).
#pragma once

#include <span>

#include "order/critical.h"
#include "order/problem.h"

namespace stowage {

// The largest of the must-live bytes and of minimum cuts at the `cuts` ops where those are largest; stops early at
// `enough`. `critical` are those of `problem`.
std::int64_t cut_bound(const OrderProblem& problem, std::span<const CriticalOp> critical, std::size_t cuts,
                       std::int64_t enough, std::int64_t& work);

}  // namespace stowage
