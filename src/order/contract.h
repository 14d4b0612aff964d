// Ops that wait for the one who needs them: a smaller problem with the same least peak.
//
//   u ──▶ s      u closes no weight, s is the first of its successors in every order, and extra(u) <= opened(s) + extra(s). Then u
//                loses nothing by running just before s: until then what it opens is not live, and its step is no larger than
//                that of s which follows. The pair becomes one op:
//
//                opens(us) = opens(u) ∪ opens(s), less what s alone closes, which joins extra(us).
//
// On captured steps this removes the swarms of optimizer scalars, casts and fills. O((V + E) log E).
#pragma once

#include "order/problem.h"

namespace stowage {

// Each weight of `problem` must have at most one opener.
struct Contracted {
  OrderProblem problem;
  std::vector<std::vector<std::int32_t>> ops;  // per op of it: the ops of the whole that it stands for, in the order to run them
};
Contracted contracted(const OrderProblem& problem);

}  // namespace stowage
