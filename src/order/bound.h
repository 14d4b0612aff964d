// Lower bounds on the peak over all plans without recomputation and swapping.
//
// A plan may place an op's result over one of its inputs (takeover, formats.md section 2); then the pair counts once in that
// step. The bound allows it wherever it could ever happen, so it holds for such plans too.
#pragma once

#include "order/problem.h"

namespace stowage {

// The problem whose optimum bounds every plan: as order_problem(), with extra(v) lowered by the takeovers that v may use. A pair
// [r, c] may be used unless r is returned or has a user that directly depends on v.
OrderProblem bound_problem(const Graph& graph, const Dependencies& dependencies, const Uses& uses);

// The largest of the must-live bytes `live` and of minimum cuts at the `cuts` ops where those are largest; stops early at `enough`.
std::int64_t cut_bound(const OrderProblem& problem, const std::vector<std::int64_t>& live, std::size_t cuts, std::int64_t enough,
                       std::int64_t& work);

}  // namespace stowage
