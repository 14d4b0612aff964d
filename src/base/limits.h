// The range of integers in files.
#pragma once

#include <cstdint>

namespace stowage {

// Integers in files are exact up to 2^53, so that every JSON reader agrees on them; sizes stay below it.
inline constexpr std::int64_t kMaxExact = (std::int64_t{1} << 53) - 1;

}  // namespace stowage
