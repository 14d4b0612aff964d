// The least step time within a limit of live bytes, by searching all states: ops run again, nothing waits on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "stowage/graph.h"

namespace stowage::testing {

// Nothing when no sequence of ops fits `capacity` live bytes. At most 8 ops; exponential in them and in the buffers.
std::optional<std::int64_t> least_ns(const Graph& graph, std::int64_t capacity);

}  // namespace stowage::testing
