#include "layout/instance.h"

#include <algorithm>

namespace stowage {

LayoutInstance make_instance(const std::vector<LayoutItem>& items, std::int64_t align) {
  LayoutInstance result;
  result.align = align;
  std::vector<std::int64_t> times;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes <= 0 || items[i].upper <= items[i].lower) continue;
    result.item.push_back(static_cast<std::int32_t>(i));
    times.push_back(items[i].lower);
    times.push_back(items[i].upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&times](std::int64_t t) {
    return static_cast<std::int32_t>(std::lower_bound(times.begin(), times.end(), t) - times.begin());
  };
  for (const std::int32_t i : result.item) {
    result.rects.push_back({rank(items[i].lower), rank(items[i].upper), (items[i].bytes + align - 1) / align * align});
    result.life.push_back(items[i].upper - items[i].lower);
    result.slack = std::max(result.slack, result.rects.back().bytes - items[i].bytes);
  }
  result.times = times.empty() ? 0 : static_cast<std::int32_t>(times.size()) - 1;
  result.bound = live_bound(result.rects, result.times);
  return result;
}

std::vector<std::int64_t> live_profile(const std::vector<Rect>& rects, std::int32_t times) {
  std::vector<std::int64_t> live(static_cast<std::size_t>(times) + 1, 0);
  for (const Rect& r : rects) {
    live[r.lower] += r.bytes;
    live[r.upper] -= r.bytes;
  }
  for (std::size_t t = 1; t < live.size(); ++t) live[t] += live[t - 1];
  live.pop_back();
  return live;
}

std::int64_t live_bound(const std::vector<Rect>& rects, std::int32_t times) {
  const std::vector<std::int64_t> live = live_profile(rects, times);
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

}  // namespace stowage
