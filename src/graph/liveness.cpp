#include "graph/liveness.h"

#include <algorithm>

namespace stowage {

std::vector<OpId> program_order(const Graph& graph) {
  std::vector<OpId> order(graph.ops.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = OpId(i);
  return order;
}

Uses uses(const Graph& graph) {
  Uses result;
  result.creator.assign(graph.buffers.size(), -1);
  Csr touched;  // per op: the planned buffers that it reads or writes, each once
  std::vector<std::int32_t> row;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    for (const BufferId b : op.creates) result.creator[b.index()] = static_cast<std::int32_t>(i);
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

std::vector<Lifetime> lifetimes(const Graph& graph, std::span<const OpId> order) {
  std::vector<Lifetime> result(graph.buffers.size());
  for (std::size_t step = 0; step < order.size(); ++step) {
    const Op& op = graph.op(order[step]);
    const auto now = static_cast<std::int32_t>(step);
    for (const BufferId b : op.creates) result[b.index()] = {now, now + 1};
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list) result[b.index()].to = now + 1;
  }
  for (std::size_t b = 0; b < result.size(); ++b) {
    if (graph.buffers[b].resident) result[b] = {0, 0};
    if (graph.buffers[b].returned) result[b].to = static_cast<std::int32_t>(order.size());
  }
  return result;
}

std::int64_t added_bytes(const Graph& graph, const Op& op) {
  std::vector<std::pair<std::int32_t, std::int64_t>> changes;  // (tick, bytes)
  for (std::size_t i = 0; i < op.creates.size(); ++i)
    changes.emplace_back(born_tick(op, i), graph.padded(graph.buffer(op.creates[i]).bytes));
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
  Op alone = op;
  for (const Takeover& pair : op.takeover) {
    const auto it = std::find(alone.creates.begin(), alone.creates.end(), pair.created);
    if (it == alone.creates.end()) continue;
    if (!alone.born.empty()) alone.born.erase(alone.born.begin() + (it - alone.creates.begin()));
    alone.creates.erase(it);
  }
  return held + added_bytes(graph, alone);
}

std::int64_t peak_bytes(const Graph& graph, std::span<const OpId> order) {
  const std::vector<Lifetime> live = lifetimes(graph, order);
  std::vector<std::int64_t> change(order.size() + 1, 0);  // of the bytes that live on after the step before
  for (std::size_t b = 0; b < live.size(); ++b) {
    if (live[b].to - live[b].from < 2) continue;  // lives inside one step only
    const std::int64_t bytes = graph.padded(graph.buffers[b].bytes);
    change[live[b].from + 1] += bytes;
    change[live[b].to] -= bytes;
  }
  std::int64_t before = 0, most = 0;
  for (std::size_t step = 0; step < order.size(); ++step) {
    before += change[step];
    most = std::max(most, before + added_bytes(graph, graph.op(order[step])));
  }
  return most;
}

}  // namespace stowage
