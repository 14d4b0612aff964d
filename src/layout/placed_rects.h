// The rects placed so far, and the gap that a new one finds among them: flat arrays in offset order. Every search passes
// over all that is placed, in a line, which for some thousands is faster than any tree; free_gaps.h is for more.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/instance.h"

namespace stowage {

enum class Gap : std::uint8_t { kLowest, kTightest };

class PlacedList {
 public:
  explicit PlacedList(std::size_t capacity);
  // Offset of the gap for `rect`. `work` is reduced by the rects looked at.
  [[nodiscard]] std::int64_t find(const Rect& rect, Gap gap, std::int64_t& work) const;
  void insert(const Rect& rect, std::int64_t offset, std::int64_t& work);

 private:
  [[nodiscard]] std::uint64_t last_block(std::size_t from, const Rect& rect) const;

  std::vector<std::int64_t> begin_, end_;
  std::vector<std::int32_t> lower_, upper_;
};

}  // namespace stowage
