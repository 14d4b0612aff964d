#include "roam/leaf_layout.h"

#include <algorithm>

#include "roam/layout_ilp.h"

namespace stowage::roam {
namespace {

// Offsets of the activations, from the latest freed up.
void stack_up(const std::vector<Rect>& rects, const std::vector<char>& activation, LeafLayout& layout) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < rects.size(); ++i)
    if (activation[i]) order.push_back(static_cast<std::int32_t>(i));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return rects[a].upper > rects[b].upper; });
  for (const std::int32_t i : order) {
    layout.offsets.at[i] = layout.activations_top;
    layout.activations_top += rects[i].bytes;
  }
}

}  // namespace

LayoutIlpResult place(const Floored& problem, const RoamOptions& options, const IlpLimits& limits, RoamStats& stats) {
  LayoutIlpResult placed = layout_ilp(problem, options.layout_ilp ? options.layout_ilp_buffers : 0, limits);
  stats.layout_ilps += placed.solver_used;
  return placed;
}

LeafLayout lay_out_leaf(const std::vector<Rect>& rects, const std::vector<char>& activation, const RoamOptions& options,
                        const IlpLimits& limits, RoamStats& stats) {
  LeafLayout result{{std::vector<std::int64_t>(rects.size(), 0), 0}, 0};
  if (options.activation_stack) stack_up(rects, activation, result);
  const auto stacked = [&](std::size_t i) { return options.activation_stack && activation[i]; };
  Floored rest;
  std::vector<std::size_t> who;
  for (std::size_t i = 0; i < rects.size(); ++i) {
    if (stacked(i)) continue;
    std::int64_t floor = 0;
    for (std::size_t j = 0; j < rects.size(); ++j)
      if (stacked(j) && meet(rects[i], rects[j])) floor = std::max(floor, result.offsets.at[j] + rects[j].bytes);
    rest.rects.push_back(rects[i]);
    rest.floor.push_back(floor);
    who.push_back(i);
  }
  const LayoutIlpResult placed = place(rest, options, limits, stats);
  ++stats.layout_leaves;
  stats.layout_proven += placed.outcome == Outcome::kOptimal;
  result.offsets.height = std::max(result.activations_top, placed.offsets.height);
  for (std::size_t k = 0; k < who.size(); ++k) {
    result.offsets.at[who[k]] = placed.offsets.at[k];
    if (activation[who[k]])
      result.activations_top = std::max(result.activations_top, placed.offsets.at[k] + rects[who[k]].bytes);
  }
  return result;
}

}  // namespace stowage::roam
