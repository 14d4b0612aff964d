// Compressed rows: a list of short lists in two flat arrays.
//
//   rows      [a b] [] [c]        start 0 2 2 3        items a b c
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "stowage/ids.h"

namespace stowage {

struct Csr {
  std::vector<std::int32_t> start{0};  // one more than there are rows
  std::vector<std::int32_t> items;

  [[nodiscard]] std::size_t rows() const { return start.size() - 1; }
  [[nodiscard]] std::span<const std::int32_t> operator[](std::size_t row) const {
    return {items.data() + start[row], static_cast<std::size_t>(start[row + 1] - start[row])};
  }
  template <class Tag>
  [[nodiscard]] std::span<const std::int32_t> operator[](Id<Tag> row) const {
    return (*this)[row.index()];
  }
  // Ends the current row.
  void close_row() { start.push_back(static_cast<std::int32_t>(items.size())); }
};

// The rows of `of` turned round: row j lists, in increasing order, every i whose row holds j. O(rows + items).
inline Csr transpose(const Csr& of, std::size_t columns) {
  Csr result;
  result.start.assign(columns + 1, 0);
  for (const std::int32_t j : of.items) ++result.start[static_cast<std::size_t>(j) + 1];
  for (std::size_t j = 0; j < columns; ++j) result.start[j + 1] += result.start[j];
  result.items.resize(of.items.size());
  std::vector<std::int32_t> next(result.start.begin(), result.start.end() - 1);
  for (std::size_t i = 0; i < of.rows(); ++i)
    for (const std::int32_t j : of[i]) result.items[next[j]++] = static_cast<std::int32_t>(i);
  return result;
}

}  // namespace stowage
