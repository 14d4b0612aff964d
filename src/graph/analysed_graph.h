// A graph with all that follows from it whatever the order. A plan works it out once; every search is handed it.
//
//   Graph ──▶ AnalysedGraph ──┬──▶ order/model.h      the problems that the order is searched in
//             dependencies    ├──▶ ordered_graph.h    what follows from one order
//             uses            ├──▶ budget/recipes.h   how each content is made again
//             reuse pairs     └──▶ roam/arrange.h
//             bytes
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dependencies.h"
#include "graph/liveness.h"
#include "stowage/graph.h"

namespace stowage {

struct AnalysedGraph {
  // `graph` must satisfy validate() and outlive this. O(V + E log E).
  explicit AnalysedGraph(const Graph& graph);
  AnalysedGraph(const AnalysedGraph&) = delete;
  AnalysedGraph& operator=(const AnalysedGraph&) = delete;

  const Graph& graph;
  Dependencies dependencies;
  Uses uses;
  IdVector<BufferId, std::int64_t> bytes;        // padded
  IdVector<OpId, std::int64_t> added_bytes;      // in_place_reuse.h, without any reuse
  IdVector<OpId, std::vector<ReusePair>> reuse;  // the useful pairs of each op
  bool reuses = false;                           // some op has one
  // Padded bytes that one run of the op needs on the device at its heaviest tick, residents excepted: all that it
  // touches, and its scratch. No plan, whatever it recomputes or swaps, needs less; a reuse pair counts once.
  IdVector<OpId, std::int64_t> run_bytes;
  std::int64_t resident_bytes = 0;
  std::int64_t returned_bytes = 0;  // padded; all of it lives through the last step
};

}  // namespace stowage
