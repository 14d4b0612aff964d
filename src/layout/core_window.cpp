#include "layout/core_window.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "layout/list_fit.h"
#include "layout/preferences.h"

namespace stowage {
namespace {

constexpr std::array kShares = {0.9999, 0.999, 0.998, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8};  // of the bound
constexpr std::array kRest = {Prefer::kTotalSize, Prefer::kFreeTime, Prefer::kArea, Prefer::kLifeAreaTotal,
                              Prefer::kSize};

struct Window {
  std::int32_t from = 0, to = 0;  // times
  bool operator==(const Window&) const = default;
};

Window window_at(const LayoutInstance& instance, const std::vector<std::int64_t>& live, double share) {
  Window window{instance.times, 0};
  for (std::int32_t t = 0; t < instance.times; ++t)
    if (static_cast<double>(live[t]) >= share * static_cast<double>(instance.bound))
      window = {std::min(window.from, t), t + 1};
  return window;
}

// The rects of an instance by what they do in a window.
struct Rects {
  std::vector<std::int32_t> through, inside;
  std::int64_t through_bytes = 0;
};

Rects rects_in(const LayoutInstance& instance, const Window& window) {
  Rects result;
  for (std::size_t i = 0; i < instance.rects.size(); ++i) {
    const Rect& r = instance.rects[i];
    if (r.upper <= window.from || window.to <= r.lower) continue;
    const bool crosses = r.lower <= window.from && window.to <= r.upper;
    (crosses ? result.through : result.inside).push_back(static_cast<std::int32_t>(i));
    if (crosses) result.through_bytes += r.bytes;
  }
  std::sort(result.through.begin(), result.through.end(), [&](std::int32_t a, std::int32_t b) {
    const Rect &ra = instance.rects[a], &rb = instance.rects[b];
    return std::tie(rb.upper, ra.lower, a) < std::tie(ra.upper, rb.lower, b);
  });
  return result;
}

LayoutInstance clipped(const LayoutInstance& instance, const Window& window, const std::vector<std::int32_t>& rects) {
  LayoutInstance result;
  result.align = instance.align;
  result.slack = instance.slack;
  result.times = window.to - window.from;
  for (const std::int32_t i : rects) {
    const Rect& r = instance.rects[i];
    result.rects.push_back(
        {std::max(r.lower, window.from) - window.from, std::min(r.upper, window.to) - window.from, r.bytes});
    result.item.push_back(i);
    result.life.push_back(instance.life[i]);
  }
  result.bound = live_bound(result.rects, result.times);
  return result;
}

// Through and inside by offset: a list fit in this order rests them where they are, or lower.
std::vector<std::int32_t> stacked(const Rects& parts, const Offsets& inside) {
  std::vector<std::size_t> by_offset(parts.inside.size());
  for (std::size_t k = 0; k < by_offset.size(); ++k) by_offset[k] = k;
  std::sort(by_offset.begin(), by_offset.end(),
            [&](std::size_t a, std::size_t b) { return std::tie(inside.at[a], a) < std::tie(inside.at[b], b); });
  std::vector<std::int32_t> order = parts.through;
  for (const std::size_t k : by_offset) order.push_back(parts.inside[k]);
  return order;
}

}  // namespace

std::vector<Packing> core_window(const LayoutInstance& instance, std::int64_t target, const WindowSearch& search,
                                 std::int64_t ceiling, std::int64_t& work) {
  std::vector<Packing> packings;
  const std::vector<std::int64_t> live = live_profile(instance.rects, instance.times);
  std::array<std::vector<std::int32_t>, kRest.size()> rest;  // when the first window asks
  Window last;
  bool met = false;
  for (std::size_t s = 0; s < kShares.size() && !met; ++s) {
    const Window window = window_at(instance, live, kShares[s]);
    if (window == last) continue;
    last = window;
    const Rects in = rects_in(instance, window);
    if (in.through.empty() || 2 * in.inside.size() > instance.rects.size()) continue;
    std::vector<std::int32_t> first = in.through;
    if (!in.inside.empty())
      first = stacked(in, search(clipped(instance, window, in.inside), target - in.through_bytes));
    std::vector<char> is_first(instance.rects.size(), 0);
    for (const std::int32_t i : first) is_first[i] = 1;
    for (std::size_t k = 0; k < kRest.size() && !met; ++k) {
      std::vector<std::int32_t> order = first;
      if (rest[k].empty()) rest[k] = preference(instance, kRest[k]);
      for (const std::int32_t i : rest[k])
        if (!is_first[i]) order.push_back(i);
      Offsets fitted = list_fit(instance, order, Gap::kLowest, work, ceiling);
      if (work <= 0) break;
      if (fitted.at.empty()) continue;
      met = fitted.height <= target;
      packings.push_back({std::move(fitted), std::move(order)});
    }
  }
  std::stable_sort(packings.begin(), packings.end(),
                   [](const Packing& a, const Packing& b) { return a.offsets.height < b.offsets.height; });
  return packings;
}

}  // namespace stowage
