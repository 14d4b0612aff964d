// Orders in which layout searches prefer rects, all else equal.
//
// total: the largest sum of live bytes at a time of the rect's life. The first three are the pre-orders of MiniMalloc
// (Moffitt, ASPLOS 2023): by total, life, area; by total, area, life; by life, area, total.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/instance.h"

namespace stowage {

enum class Prefer : std::uint8_t {
  kTotalLifeArea,
  kTotalAreaLife,
  kLifeAreaTotal,
  kAreaTotalLife,
  kSize,
  kTotalSize,
  kArea,
  kFreeTime,
  kSizeFreeTime,
  // Of plain greedies: what is equal stays in the order of the input
  kSizeInput,
  kLifeSize,
  kStartSize,
  kStartLife,
  kEnd
};

// What comes before the preference: nothing; what lives at the fullest time; what lives at a time fuller than 99, 97,
// 95 % of it.
//
//   live ┤     ▄▄        What is served first at the fullest time is stacked there without a hole, which a layout at the bound must
//        ┤  ▄▄████▄      be; the rest finds room beside it. Steps of training have one such moment and are emptier elsewhere.
//        ┤▄████████▄▄
enum class Band : std::uint8_t { kNone, kFullest, kSteps };

// The rects of the band by `prefer`, then the others by `rest`.
std::vector<std::int32_t> preference(const LayoutInstance& instance, Band band, Prefer prefer, Prefer rest);

std::vector<std::int32_t> preference(const LayoutInstance& instance, Prefer prefer);

}  // namespace stowage
