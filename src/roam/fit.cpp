#include "roam/fit.h"

#include <algorithm>
#include <numeric>

namespace stowage::roam {

std::int64_t lowest_gap(std::vector<std::pair<std::int64_t, std::int64_t>>& taken, std::int64_t floor,
                        std::int64_t bytes) {
  std::sort(taken.begin(), taken.end());
  std::int64_t at = floor;
  for (const auto& [begin, end] : taken) {
    if (begin >= at + bytes) break;
    at = std::max(at, end);
  }
  return at;
}

Offsets fit_in_order(const Floored& problem, std::span<const std::int32_t> order) {
  Offsets result{std::vector<std::int64_t>(problem.rects.size(), 0), 0};
  std::vector<std::int32_t> placed;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (const std::int32_t i : order) {
    const Rect& rect = problem.rects[i];
    taken.clear();
    for (const std::int32_t j : placed)
      if (meet(rect, problem.rects[j])) taken.emplace_back(result.at[j], result.at[j] + problem.rects[j].bytes);
    result.at[i] = lowest_gap(taken, problem.floor[i], rect.bytes);
    result.height = std::max(result.height, result.at[i] + rect.bytes);
    placed.push_back(i);
  }
  return result;
}

Offsets best_fit(const Floored& problem) {
  const auto area = [](const Rect& r) { return static_cast<double>(r.bytes) * (r.upper - r.lower); };
  const std::vector<std::function<bool(const Rect&, const Rect&)>> rules = {
      [](const Rect& a, const Rect& b) { return a.bytes > b.bytes; },
      [&](const Rect& a, const Rect& b) { return area(a) > area(b); },
      [](const Rect& a, const Rect& b) { return a.upper - a.lower > b.upper - b.lower; },
      [](const Rect& a, const Rect& b) { return a.lower < b.lower; },
  };
  Offsets best;
  for (const auto& before : rules) {
    std::vector<std::int32_t> order(problem.rects.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return before(problem.rects[a], problem.rects[b]); });
    Offsets found = fit_in_order(problem, order);
    if (best.at.empty() || found.height < best.height) best = std::move(found);
  }
  return best;
}

std::int64_t height_bound(const Floored& problem) {
  std::vector<std::int32_t> by_start(problem.rects.size());
  std::iota(by_start.begin(), by_start.end(), 0);
  std::stable_sort(by_start.begin(), by_start.end(),
                   [&](std::int32_t a, std::int32_t b) { return problem.rects[a].lower < problem.rects[b].lower; });
  std::int64_t bound = 0;
  std::vector<std::int32_t> live;
  std::vector<std::pair<std::int64_t, std::int64_t>> floors;  // (floor, bytes)
  for (std::size_t k = 0; k < by_start.size(); ++k) {
    const std::int32_t now = problem.rects[by_start[k]].lower;
    live.push_back(by_start[k]);
    if (k + 1 < by_start.size() && problem.rects[by_start[k + 1]].lower == now) continue;
    std::erase_if(live, [&](std::int32_t i) { return problem.rects[i].upper <= now; });
    floors.clear();
    for (const std::int32_t i : live) floors.emplace_back(problem.floor[i], problem.rects[i].bytes);
    std::sort(floors.rbegin(), floors.rend());
    std::int64_t above = 0;
    for (const auto& [floor, bytes] : floors) bound = std::max(bound, floor + (above += bytes));
  }
  return bound;
}

}  // namespace stowage::roam
