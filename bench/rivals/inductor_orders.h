// The three orders that PyTorch Inductor tries (torch/_inductor/memory.py, PyTorch 2.13); it keeps the one with the
// lowest estimated peak, program order included.
//
//   LPMF   least peak memory first: list scheduling by live bytes (list_scheduler.h); after Han et al., DAC 2006
//   BFS    of the ready ops, the one whose predecessors ran earliest: their positions, sorted, compare as lists
//   DFS    each op after its predecessors, the ones that move the fewest bytes (created and read) first
//
// Differs: Inductor orders fused kernels of the forward and the backward graph apart and leaves the optimizer alone;
// here each orders the kernels of the whole step, with the bytes of everyone else.
#pragma once

#include <vector>

#include "stowage/graph.h"

namespace stowage::rivals {

std::vector<OpId> lpmf_order(const Graph& graph);
std::vector<OpId> bfs_order(const Graph& graph);
std::vector<OpId> dfs_order(const Graph& graph);

}  // namespace stowage::rivals
