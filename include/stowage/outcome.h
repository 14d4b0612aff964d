// What a search can say of its result.
#pragma once

#include <cstdint>
#include <string_view>

namespace stowage {

// optimal: proven to be the best. feasible: valid, not proven best. infeasible: proven that there is none. unknown: a
// limit stopped the search with nothing to show.
enum class Outcome : std::uint8_t { kOptimal, kFeasible, kInfeasible, kUnknown };

std::string_view to_string(Outcome outcome);

}  // namespace stowage
