// A checker that is slow and plain on purpose, as an oracle for check(): it asks the history anew at every step instead
// of keeping a state, and compares all pairs at every tick instead of sweeping.
#pragma once

#include <cstdint>
#include <optional>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::testing {

// The peak of a valid plan, or nothing. `graph` must be valid. Cubic or worse.
std::optional<std::int64_t> naive_peak(const Graph& graph, const Plan& plan);

}  // namespace stowage::testing
