#include "budget/takeover.h"

#include "graph/liveness.h"

namespace stowage::budget {

TakeoverTable::TakeoverTable(const Graph& graph, bool on)
    : graph_(&graph), pairs_(graph.ops.size()), best_(graph.ops.size()) {
  if (!on) return;
  for (std::size_t k = 0; k < graph.ops.size(); ++k) pairs_[k] = useful_takeovers(graph, graph.ops[k]);
}

const TakeoverTable::Best& TakeoverTable::best(std::int32_t op, const std::vector<char>& ends) const {
  auto [entry, fresh] = best_[op].try_emplace(ends);
  if (!fresh) return entry->second;
  std::vector<Takeover> usable;
  for (std::size_t i = 0; i < ends.size(); ++i)
    if (ends[i]) usable.push_back(pairs_[op][i]);
  Best& best = entry->second;
  best.pairs = best_takeovers(*graph_, graph_->ops[op], usable);
  best.added = added_bytes(*graph_, graph_->ops[op], best.pairs);
  return best;
}

}  // namespace stowage::budget
