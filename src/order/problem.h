// The ordering problem without the rest of the graph: precedence, and weights that open and close.
//
//   An order runs every op once, preds first. A weight is live after a set S of ops has run when one of its openers is in S and
//   one of its closers is not. Running v when L bytes are live takes
//
//       step(v) = L + (weights that v opens) + extra(v)         then live becomes   L + opened - closed
//
//                 ┌───┐ extra(v)
//             ┌───┘   └───┐ opened      ┌─ next op
//   L ────────┘           └──── closed ─┘
//
// From a graph: a weight is a buffer, opened by its creator and closed by its users. Turned round (time runs backwards)
// it is opened by its users and closed by its creator, and the peak of an order is the peak of the reversed order. So
// every search here works in both directions. f(S), the bytes live after S, is submodular: f(S ∪ X) - f(S) can only
// fall as S grows. All lossless moves rest on this.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/csr.h"
#include "graph/analysed_graph.h"

namespace stowage {

struct OrderProblem {
  std::int32_t ops = 0;
  Csr preds, succs;                  // per op; the ids are a topological order
  std::vector<std::int64_t> weight;  // per weight, > 0
  Csr openers, closers;              // per weight: ops
  std::vector<char> open_at_start;   // per weight: live before any op ran
  std::vector<char> open_at_end;     // per weight: never closed
  Csr opens, closes;                 // per op: weights (the transposes)
  std::vector<std::int64_t> extra;   // per op
  std::int64_t base = 0;             // bytes that are live throughout
};

// The problem of `graph`, without in-place reuse: op ids are the graph's.
OrderProblem order_problem(const AnalysedGraph& graph);

// The same with other dependencies than the graph's.
OrderProblem order_problem(const AnalysedGraph& graph, const Dependencies& dependencies);

// Time backwards. Op i becomes op ops - 1 - i, so that ids stay a topological order.
OrderProblem reversed(const OrderProblem& problem);

// The part of the order between two states: `members` run after everything in `before` and ahead of all else. Op i of
// the result is members[i], so members must be a topological order.
OrderProblem restricted(const OrderProblem& problem, std::span<const std::int32_t> members,
                        const std::vector<char>& before);

// The problem with more precedence, its ops renumbered so that the ids are a topological order again: op i is ids[i] of
// `problem`.
struct Precedence {
  std::int32_t from, to;
};
struct Renumbered {
  OrderProblem problem;
  std::vector<std::int32_t> ids;
};
// none: a cycle
std::optional<Renumbered> with_precedence(const OrderProblem& problem, std::span<const Precedence> more);

// Ops, edges and uses: what one pass over the problem looks at.
inline std::int64_t size_of(const OrderProblem& problem) {
  return static_cast<std::int64_t>(problem.preds.items.size() + problem.openers.items.size() +
                                   problem.closers.items.size()) +
         problem.ops;
}

// Step of each op of `order`, by place in it. O(V + E).
std::vector<std::int64_t> steps(const OrderProblem& problem, std::span<const std::int32_t> order);

// Largest step of `order`, a permutation of the ops that respects the precedence. O(V + E).
std::int64_t peak(const OrderProblem& problem, std::span<const std::int32_t> order);

}  // namespace stowage
