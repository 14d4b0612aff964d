// What follows from one order of a graph: lifetimes, and the in-place reuse that it allows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/analysed_graph.h"

namespace stowage {

// The pair is used in this step of an order.
struct ReuseAt {
  std::int32_t step = 0;
  ReusePair pair;
};

struct OrderedGraph {
  // O(V + E).
  OrderedGraph(const AnalysedGraph& graph, std::vector<OpId> order);

  const AnalysedGraph* analysed;
  std::vector<OpId> order;
  IdVector<BufferId, Lifetime> live;
  // For each step the best of the pairs whose r has its last use there. By step.
  std::vector<ReuseAt> reuse;
};

// Per step: the sum of padded bytes live at its heaviest tick, with the reuse `used`, which is by step. O(V + E).
std::vector<std::int64_t> step_bytes(const OrderedGraph& ordered, std::span<const ReuseAt> used);

// The largest of them.
std::int64_t peak_bytes(const OrderedGraph& ordered, std::span<const ReuseAt> used);

// The same without in-place reuse, for who asks nothing else of the order. O(V + E).
std::int64_t peak_bytes(const Graph& graph, std::span<const OpId> order);

}  // namespace stowage
