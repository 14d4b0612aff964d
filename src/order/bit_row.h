// One relation between an op and 512 others at a time, a bit for each: sweeps over a graph join whole rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace stowage {

inline constexpr std::int32_t kRowWords = 8;
inline constexpr std::int32_t kRowColumns = 64 * kRowWords;
using BitRow = std::array<std::uint64_t, kRowWords>;

inline void set(BitRow& row, std::size_t column) { row[column >> 6] |= std::uint64_t{1} << (column & 63); }

inline bool is_set(const BitRow& row, std::size_t column) { return (row[column >> 6] >> (column & 63) & 1) != 0; }

inline void join(BitRow& into, const BitRow& from) {
  for (std::size_t k = 0; k < kRowWords; ++k) into[k] |= from[k];
}

}  // namespace stowage
