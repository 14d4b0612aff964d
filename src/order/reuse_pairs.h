// In-place reuse in the ordering problem: which inputs die where a result may lie over them.
//
//   r ──▶ k ──▶ c      pair [r, c] at k. Whether r dies at k, so that c need not be counted in step k:
//
//     sure     every other user of r is an ancestor of k                extra(k) less c, in all orders
//     never    one is a descendant of k                                 extra(k) stays
//     open     otherwise: it dies if k comes last of the users          a saving that depends on the order
//
// Two problems bracket the truth: `certain` has the sure savings alone, so its peaks are reached or beaten by plans;
// `relaxed` grants the open ones too, so its optimum bounds every plan. Ancestry is asked for through landmarks first
// (512 ops; u precedes v if some landmark lies between) and then exactly, 512 ops at a time, up to a limit of work:
// what stays unknown is open.
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"

namespace stowage {

enum class Death : std::uint8_t { kNever, kOpen, kSure };

// A pair of the op, and whether its r dies there.
struct CandidatePair {
  std::int32_t op = 0;
  ReusePair pair;
  Death death = Death::kOpen;
};

// All useful pairs but the impossible ones, by op.
std::vector<CandidatePair> candidate_pairs(const AnalysedGraph& graph);

// `plain`, the problem without in-place reuse, with extra() lowered by the best of the sure pairs ...
OrderProblem certain_problem(const AnalysedGraph& graph, const OrderProblem& plain,
                             const std::vector<CandidatePair>& pairs);
// ... and by the best of all.
OrderProblem relaxed_problem(const AnalysedGraph& graph, const OrderProblem& plain,
                             const std::vector<CandidatePair>& pairs);

}  // namespace stowage
