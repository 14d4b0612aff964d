// Who makes and who uses each buffer; and when buffers live, once an order is given.
//
//   step          0     1     2     3        a buffer lives from the step that creates it up to its last use (half-open),
//   a creates  ┌──────────────┐              a returned one up to the end, an unused one only in the step that creates it.
//   b             ┌──────────────────┐       Inside its creating step it lives from its `born` tick on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/csr.h"
#include "stowage/graph.h"

namespace stowage {

// The order of the graph as it was written.
std::vector<OpId> program_order(const Graph& graph);

// Buffers without a resident, as the planner sees them: who creates and who uses each. An op that only creates is no
// user.
struct Uses {
  IdVector<BufferId, std::int32_t> creator;  // per buffer; -1 for residents
  Csr users;                                 // per buffer, increasing op ids; empty for residents
};
Uses uses(const Graph& graph);

// Live steps [from, to) of each buffer in `order`; from == to for residents. O(V + E).
struct Lifetime {
  std::int32_t from = 0;
  std::int32_t to = 0;
};
IdVector<BufferId, Lifetime> lifetimes(const Graph& graph, std::span<const OpId> order);

}  // namespace stowage
