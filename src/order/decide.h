// Is there an order with a peak of at most `limit`? Exact search on valleys.
//
//   live │ limit ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─    From a state S, where no move is forced, look around for a state V that is
//        │      ╭╮    ╭─╮                   reached under the limit and has no more live bytes than S, nor than any state
//        │ S ───╯╰────╯ ╰── V ≤ S           between S and V. Running to V loses nothing: for every state R ⊇ S of an order,
//        │                                  f(R ∪ V) ≤ f(R) + f(V) - f(R ∩ V) ≤ f(R) by submodularity, so V's ops may
//                                           come first, and the steps after them weigh no more than they did.
//
// If looking around exhausts what is reachable and finds no valley and no end, S is a dead end. If it only runs out of
// patience, the search branches on the next op and remembers dead states (128-bit hashes). The nearest valley is made
// exact by a minimum cut between S and it (min_cut.h). States of dead ends tell the next limit worth asking about: the
// least step that was refused.
//
// Divide and conquer on hills and valleys is Liu's for trees ("An application of generalized tree pebbling to sparse
// matrix factorization", SIAM J. Alg. Disc. Meth. 8, 1987); differs: any DAG, valleys found by search, and an answer of
// "unknown".
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"

namespace stowage {

enum class Decision : std::uint8_t { kYes, kNo, kUnknown };

struct DecisionResult {
  Decision decision = Decision::kUnknown;
  std::vector<std::int32_t> order;  // yes
  std::int64_t next_limit = 0;      // no: no order has a peak below this
};

// Weights of `problem` have at most one opener. `work` is reduced by about a nanosecond a unit.
DecisionResult decide(const OrderProblem& problem, std::int64_t limit, std::int64_t& work);

}  // namespace stowage
