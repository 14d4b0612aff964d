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

}  // namespace stowage
