#include "order/bound.h"

#include <algorithm>

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

}  // namespace stowage
