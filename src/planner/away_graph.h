// Residents that wait on the host, as buffers that the planner knows: a graph in which an op makes each of them, and an
// op looks at what is left of it last.
//
//   p resident     op 1  reads p            ──▶    fetch p   creates p                p ────█████████████────
//                  op 2  writes p                  op 1      reads p                        │           └ store p: its last
//                  op 3  …                         op 2      writes p, p's token            └ fetch p
//                                                  store p   reads p                  from here on op 3 has its place
//
// So the order, the bounds, the layout and recomputation do for residents what they do for all buffers: p comes as late
// and goes as early as the peak needs it, an "op" that fetches it runs again for a later use where p had to make room,
// and the bound on the peak is one for all plans that fetch each once. A fetch that runs again finds what the step found:
// it reads a token, a resident without bytes, and whoever writes p writes the token, so that it cannot run after the first
// write (docs/formats.md: the host holds the first version until it is written back). O(size of the graph).
#pragma once

#include <cstdint>
#include <vector>

#include "budget/lanes.h"
#include "stowage/graph.h"

namespace stowage {

struct AwayGraph {
  enum class Kind : std::uint8_t { kRun, kFetch, kStore };
  struct Origin {
    Kind kind = Kind::kRun;
    OpId op;          // kRun: of the given graph
    BufferId buffer;  // kFetch, kStore
  };
  Graph graph;                 // sealed; buffers keep their ids, tokens follow
  std::vector<Origin> origin;  // per op
};

// `away`: increasing ids of residents, each touched by some op. A fetch costs what its copy takes.
AwayGraph send_away(const Graph& graph, const std::vector<BufferId>& away, budget::Link link);

}  // namespace stowage
