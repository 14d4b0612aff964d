#include "budget/recipes.h"

#include <algorithm>

namespace stowage::budget {

Recipes::Recipes(const AnalysedGraph& of, bool in_place_reuse)
    : analysed(&of),
      graph(&of.graph),
      ops(static_cast<std::int32_t>(graph->ops.size())),
      buffers(static_cast<std::int32_t>(graph->buffers.size())),
      added(of.added_bytes.raw()),
      needs(graph->ops.size()),
      creates(graph->ops.size()),
      repeatable(graph->ops.size(), 1),
      ends(graph->ops.size()),
      reuse(of, in_place_reuse),
      bytes(of.bytes.raw()),
      returned(graph->buffers.size(), 0),
      makers(graph->buffers.size()) {
  const Graph& g = *graph;
  IdVector<BufferId, std::vector<std::int32_t>> readers(g.buffers.size());  // of a resident, since its latest write
  for (std::size_t b = 0; b < g.buffers.size(); ++b) returned[b] = g.buffers[b].returned;
  for (std::int32_t k = 0; k < ops; ++k) {
    const Op& op = g.ops[k];
    cost.push_back(op.cost_ns);
    if (op.effect || op.once) repeatable[k] = 0;
    const auto need = [&](BufferId b, bool written) {
      needs[k].push_back({b.value, static_cast<std::int32_t>(makers[b.index()].size()), written});
    };
    std::int32_t written = 0;
    for (const BufferId b : op.reads) {
      if (std::find(op.writes.begin(), op.writes.end(), b) != op.writes.end()) continue;
      if (g.buffer(b).resident)
        readers[b].push_back(k);
      else
        need(b, false);
    }
    for (const BufferId b : op.writes) {
      if (!g.buffer(b).resident) {
        need(b, true);
        // More than one content that would have to be rewound together: not again.
        if (++written > 1 || !op.creates.empty()) repeatable[k] = 0;
        continue;
      }
      repeatable[k] = 0;
      for (const std::int32_t reader : readers[b])
        if (reader != k) ends[reader].push_back(k);
      readers[b].clear();
    }
    for (const BufferId b : op.writes)
      if (!g.buffer(b).resident) makers[b.index()].push_back(k);
    for (const BufferId b : op.creates) {
      creates[k].push_back(b.value);
      makers[b.index()].push_back(k);
    }
  }
}

}  // namespace stowage::budget
