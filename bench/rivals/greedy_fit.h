// Greedy layouts: items in a fixed order, each into a gap that its time neighbours leave.
//
//   order      serves first          as in
//   size       the largest           Pisarchyk and Lee (arXiv 2001.03288): TFLM, XNNPACK, ExecuTorch
//   area       bytes x lifetime
//   lifetime   the longest-lived
//   start      the earliest          online, without knowledge of what comes: ONNX Runtime, TFLite's arena, ggml
//   start_life the earliest, of one start the longest-lived
//   end        the latest freed      a stack from behind
//
//   gap: the lowest one that holds the item, or the tightest one (best fit); the top is open, so there always is one.
//
// Twelve in all. O(n^2), deliberately plain; greedy_layout_of_many gives the same addresses by the core's free_gaps.h
// (tests/layout compare them), for sets on which the plain ones would take minutes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stowage/layout.h"

namespace stowage::rivals {

enum class Serve : std::uint8_t { kSize, kArea, kLifetime, kStart, kStartLife, kEnd };
enum class Fit : std::uint8_t { kFirst, kBest };

inline constexpr std::array<std::string_view, 6> kServeNames = {"size",  "area",       "lifetime",
                                                                "start", "start_life", "end"};
inline constexpr std::array<std::string_view, 2> kFitNames = {"first_fit", "best_fit"};

std::vector<std::int64_t> greedy_layout(const std::vector<LayoutItem>& items, std::int64_t align, Serve serve, Fit fit);

std::vector<std::int64_t> greedy_layout_of_many(const std::vector<LayoutItem>& items, std::int64_t align, Serve serve,
                                                Fit fit);

// Top of the highest item.
std::int64_t height(const std::vector<LayoutItem>& items, const std::vector<std::int64_t>& offsets);

}  // namespace stowage::rivals
