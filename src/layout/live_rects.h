// The placed rects that live with one, with removal.
//
//                [            0..8            ]        rect [3,5) crosses the middle: kept at the root
//                [     0..4    ][    4..8     ]        rect [4,7) is kept at 4..8
//                [ 0..2 ][ 2..4 ] …
//
// Each lies at the smallest dyadic range of times that holds it; a search looks at the ranges that meet its own. Among
// thousands of short rects that follow each other a search is independent of their number.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/instance.h"

namespace stowage {

class LiveRects {
 public:
  struct Placed {
    std::int64_t begin, end;  // addresses
    std::int32_t lower, upper, rect;
    float price;
  };

  LiveRects(std::int32_t times, std::size_t rects);
  void insert(std::int32_t i, const Rect& rect, std::int64_t offset, float price);  // O(log times)
  void remove(std::int32_t i);                                                      // O(log times)
  // `met`: those that share a time with `rect`. `looked` grows by the rects and ranges passed.
  void gather(const Rect& rect, std::vector<Placed>& met, std::int64_t& looked) const;

 private:
  void gather(std::size_t node, std::int32_t from, std::int32_t to, const Rect& rect, std::vector<Placed>& met,
              std::int64_t& looked) const;

  std::int32_t size_ = 1;                   // a power of two, at least the number of times
  std::vector<std::vector<Placed>> nodes_;  // children of i: 2i and 2i + 1; the root is 1
  std::vector<std::int32_t> below_;         // rects at or below the node
  std::vector<std::int32_t> node_, slot_;   // of each placed rect
};

}  // namespace stowage
