// The rects placed so far, and the gap that a new one finds among them. Two ways to keep them, with the same answers:
//
//   PlacedList   flat arrays in offset order; every search passes over all that is placed, in a line.
//   PlacedTree   each rect at the smallest dyadic range of times that holds it; a search looks at the ranges that meet its own:
//
//                [            0..8            ]        rect [3,5) crosses the middle: kept at the root
//                [     0..4    ][    4..8     ]        rect [4,7) is kept at 4..8
//                [ 0..2 ][ 2..4 ] …
//
// For rects that live long there is little to choose; when thousands of short ones follow each other the tree makes a
// search independent of their number.
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
  void insert(const Rect& rect, std::int64_t offset);

 private:
  [[nodiscard]] std::uint64_t last_block(std::size_t from, const Rect& rect) const;

  std::vector<std::int64_t> begin_, end_;
  std::vector<std::int32_t> lower_, upper_;
};

class PlacedTree {
 public:
  explicit PlacedTree(std::int32_t times);
  [[nodiscard]] std::int64_t find(const Rect& rect, Gap gap, std::int64_t& work);
  void insert(const Rect& rect, std::int64_t offset);

 private:
  struct Placed {
    std::int64_t begin, end;
    std::int32_t lower, upper;
  };
  void gather(std::size_t node, std::int32_t from, std::int32_t to, const Rect& rect);

  std::int32_t size_ = 1;                                   // a power of two, at least the number of times
  std::vector<std::vector<Placed>> nodes_;                  // children of i: 2i and 2i + 1; the root is 1
  std::vector<char> used_;                                  // something lies at or below the node
  std::vector<std::pair<std::int64_t, std::int64_t>> met_;  // scratch: [begin, end) of the neighbours
  std::int64_t looked_ = 0;
};

}  // namespace stowage
