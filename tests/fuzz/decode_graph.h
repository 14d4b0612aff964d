// Bytes as a small graph that is valid by construction, and as options of the planner.
#pragma once

#include <optional>

#include "fuzz/byte_source.h"
#include "stowage/graph.h"
#include "stowage/planner.h"

namespace stowage::fuzz {

// Sealed. Nothing when its sizes or costs add up to more than the format allows.
std::optional<Graph> decode_graph(ByteSource& bytes, std::int64_t most_ops);

// All but the budget, which depends on the graph; searches are small.
PlanOptions decode_options(ByteSource& bytes);

// From what is never possible to what costs nothing; residents included.
std::int64_t decode_budget(ByteSource& bytes, const Graph& graph);

}  // namespace stowage::fuzz
