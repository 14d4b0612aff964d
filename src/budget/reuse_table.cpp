#include "budget/reuse_table.h"

#include "graph/in_place_reuse.h"

namespace stowage::budget {

ReuseTable::ReuseTable(const AnalysedGraph& graph, bool on)
    : analysed_(&graph), on_(on), best_(graph.graph.ops.size()) {}

const ReuseTable::Best& ReuseTable::best(std::int32_t op, const std::vector<char>& ends) const {
  auto [entry, fresh] = best_[op].try_emplace(ends);
  if (!fresh) return entry->second;
  std::vector<ReusePair> usable;
  for (std::size_t i = 0; i < ends.size(); ++i)
    if (ends[i]) usable.push_back(pairs(op)[i]);
  Best& best = entry->second;
  const Graph& graph = analysed_->graph;
  best.pairs = best_pairs(graph, graph.ops[op], usable);
  best.added = added_bytes(graph, graph.ops[op], best.pairs);
  return best;
}

}  // namespace stowage::budget
