// Sums that stop at 2^61 instead of overflowing. The readers keep every sum over a file below 2^53, but a plan may run
// an op many times, and wait for copies over a link of any speed: no such sum may overflow, and none that large decides
// anything.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stowage {

inline constexpr std::int64_t kMostSum = std::int64_t{1} << 61;

// Of numbers within kMostSum of 0; so is the result.
[[nodiscard]] inline std::int64_t capped_sum(std::int64_t a, std::int64_t b) {
  return std::clamp(a + b, -kMostSum, kMostSum);
}

}  // namespace stowage
