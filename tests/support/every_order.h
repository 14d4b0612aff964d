// The least peak of a small graph by trying every permutation of its ops, with the checker as the only judge. Knows
// nothing of dependencies, bounds or layouts.
#pragma once

#include <cstdint>

#include "stowage/graph.h"

namespace stowage::testing {

struct LeastPeak {
  std::int64_t plain = 0;       // no in-place reuse
  std::int64_t with_reuse = 0;  // any set of reuse pairs may be used; of the first six only when there are more
  bool all_pairs = true;        // there are no more than six
};

// At most 8 ops. `graph` must be valid.
LeastPeak least_peak(const Graph& graph);

}  // namespace stowage::testing
