// The layout problem made ready for search: times are ranks, sizes are multiples of the alignment, empty items are
// gone.
//
//   items     [0,40) 100 B   [10,40) 7 B   [90,95) 0 B          align 8
//   rects     [0,2)  104 B   [1,2)   8 B                        times 0, 10, 40 are ranks 0, 1, 2
//
// Offsets are in bytes and multiples of `align` because every size is one. The height of a layout of the items can be
// smaller than that of the rects only by the padding of the topmost one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stowage/layout.h"

namespace stowage {

struct Rect {
  std::int32_t lower = 0;  // rank of the first live time
  std::int32_t upper = 0;  // exclusive
  std::int64_t bytes = 0;  // > 0, padded
};

struct LayoutInstance {
  std::vector<Rect> rects;
  std::vector<std::int32_t> item;  // per rect: its place in the items
  std::vector<std::int64_t> life;  // per rect: its duration in the items' own time
  std::int32_t times = 0;
  std::int64_t align = 1;
  std::int64_t bound = 0;  // largest sum of live bytes, padded
  // Largest padding of one rect: by so much may a layout of the items be lower than of the rects
  std::int64_t slack = 0;
};

// O(n log n).
LayoutInstance make_instance(const std::vector<LayoutItem>& items, std::int64_t align);

// Largest sum of bytes live at one time. O(n + times).
std::int64_t live_bound(const std::vector<Rect>& rects, std::int32_t times);
std::vector<std::int64_t> live_profile(const std::vector<Rect>& rects, std::int32_t times);

// One address per rect, and the top of the highest.
struct Offsets {
  std::vector<std::int64_t> at;
  std::int64_t height = 0;
};

}  // namespace stowage
