#include "order/bound.h"

#include <algorithm>
#include <numeric>

#include "order/min_cut.h"

namespace stowage {
namespace {

bool may_take_over(const Graph& graph, const Dependencies& dependencies, const Uses& uses, OpId op, const Takeover& pair) {
  const Buffer& read = graph.buffer(pair.read);
  if (read.resident || read.returned) return false;
  const auto later = dependencies.succs[op.index()];
  const auto users = uses.users[pair.read.index()];
  return std::none_of(users.begin(), users.end(),
                      [&](std::int32_t user) { return std::binary_search(later.begin(), later.end(), user); });
}

// The op without the creations that could lie over an input.
Op without_takeovers(const Graph& graph, const Dependencies& dependencies, const Uses& uses, OpId id) {
  Op op = graph.op(id);
  for (const Takeover& pair : graph.op(id).takeover) {
    if (!may_take_over(graph, dependencies, uses, id, pair)) continue;
    const auto it = std::find(op.creates.begin(), op.creates.end(), pair.created);
    if (it == op.creates.end()) continue;
    if (!op.born.empty()) op.born.erase(op.born.begin() + (it - op.creates.begin()));
    op.creates.erase(it);
  }
  return op;
}

}  // namespace

OrderProblem bound_problem(const Graph& graph, const Dependencies& dependencies, const Uses& uses) {
  OrderProblem p = order_problem(graph, dependencies, uses);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (!op.takeover.empty())
      p.extra[i] += added_bytes(graph, without_takeovers(graph, dependencies, uses, OpId(i))) - added_bytes(graph, op);
  }
  return p;
}

std::int64_t cut_bound(const OrderProblem& problem, const std::vector<std::int64_t>& live, std::size_t cuts, std::int64_t enough,
                       std::int64_t& work) {
  if (live.empty()) return problem.base;
  std::vector<std::int32_t> heaviest(live.size());
  std::iota(heaviest.begin(), heaviest.end(), 0);
  const auto end = heaviest.begin() + static_cast<std::ptrdiff_t>(std::min(cuts, heaviest.size()));
  std::partial_sort(heaviest.begin(), end, heaviest.end(),
                    [&](std::int32_t a, std::int32_t b) { return live[a] != live[b] ? live[a] > live[b] : a < b; });
  std::int64_t bound = *std::max_element(live.begin(), live.end());
  for (auto v = heaviest.begin(); v != end && bound < enough && work > 0; ++v)
    bound = std::max(bound, min_cut(problem, *v, CutSide::kSmallest, work).step_bytes);
  return bound;
}

}  // namespace stowage
