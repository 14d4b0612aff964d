#include "graph/liveness.h"

#include <algorithm>

#include "graph/takeover.h"

namespace stowage {

std::vector<OpId> program_order(const Graph& graph) {
  std::vector<OpId> order(graph.ops.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = OpId(i);
  return order;
}

Uses uses(const Graph& graph) {
  Uses result;
  result.creator = IdVector<BufferId, std::int32_t>(graph.buffers.size(), -1);
  Csr touched;  // per op: the planned buffers that it reads or writes, each once
  std::vector<std::int32_t> row;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    for (const BufferId b : op.creates) result.creator[b] = static_cast<std::int32_t>(i);
    row.clear();
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list)
        if (!graph.buffer(b).resident) row.push_back(b.value);
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    touched.items.insert(touched.items.end(), row.begin(), row.end());
    touched.close_row();
  }
  result.users = transpose(touched, graph.buffers.size());
  return result;
}

IdVector<BufferId, Lifetime> lifetimes(const Graph& graph, std::span<const OpId> order) {
  IdVector<BufferId, Lifetime> result(graph.buffers.size());
  for (std::size_t step = 0; step < order.size(); ++step) {
    const Op& op = graph.op(order[step]);
    const auto now = static_cast<std::int32_t>(step);
    for (const BufferId b : op.creates) result[b] = {now, now + 1};
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list) result[b].to = now + 1;
  }
  for (const BufferId b : result.ids()) {
    if (graph.buffer(b).resident) result[b] = {0, 0};
    if (graph.buffer(b).returned) result[b].to = static_cast<std::int32_t>(order.size());
  }
  return result;
}

std::int64_t added_bytes(const Graph& graph, const Op& op, std::span<const Takeover> used) {
  std::vector<std::pair<std::int32_t, std::int64_t>> changes;  // (tick, bytes)
  const auto taken_over = [&](BufferId b) {
    return std::any_of(used.begin(), used.end(), [b](const Takeover& t) { return t.created == b; });
  };
  for (std::size_t i = 0; i < op.creates.size(); ++i) {
    if (taken_over(op.creates[i])) continue;
    changes.emplace_back(born_tick(op, i), graph.padded(graph.buffer(op.creates[i]).bytes));
  }
  for (const Scratch& s : op.scratch) {
    changes.emplace_back(s.from, graph.padded(s.bytes));
    changes.emplace_back(s.to, -graph.padded(s.bytes));
  }
  std::sort(changes.begin(), changes.end());  // at one tick what goes comes first: intervals are half-open
  std::int64_t now = 0, most = 0;
  for (const auto& [tick, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

std::int64_t op_bytes(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  std::vector<BufferId> touched;
  for (const auto* list : {&op.reads, &op.writes}) touched.insert(touched.end(), list->begin(), list->end());
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  std::int64_t held = 0;
  for (const BufferId b : touched)
    if (!graph.buffer(b).resident) held += graph.padded(graph.buffer(b).bytes);
  return held + least_added_bytes(graph, op, op.takeover);
}

std::int64_t peak_bytes(const Graph& graph, std::span<const OpId> order) { return peak_bytes(graph, order, {}); }

}  // namespace stowage
