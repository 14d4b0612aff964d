#include "layout/preferences.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace stowage {
namespace {

// Largest live bytes during the life of each rect, by a sparse table over the profile. O(n + T log T).
std::vector<std::int64_t> totals(const LayoutInstance& instance) {
  std::vector<std::vector<std::int64_t>> most{live_profile(instance.rects, instance.times)};
  for (std::size_t width = 1; 2 * width <= most[0].size(); width *= 2) {
    const auto& half = most.back();
    std::vector<std::int64_t> level(half.size() - width);
    for (std::size_t t = 0; t < level.size(); ++t) level[t] = std::max(half[t], half[t + width]);
    most.push_back(std::move(level));
  }
  std::vector<std::int64_t> result;
  result.reserve(instance.rects.size());
  for (const Rect& r : instance.rects) {
    const int level = std::bit_width(static_cast<std::uint32_t>(r.upper - r.lower)) - 1;
    result.push_back(std::max(most[level][r.lower], most[level][r.upper - (1 << level)]));
  }
  return result;
}

using Key = std::array<double, 3>;

Key key_of(Prefer prefer, const Rect& r, double total, double life) {
  const auto bytes = static_cast<double>(r.bytes), area = life * bytes;
  switch (prefer) {
    case Prefer::kTotalLifeArea: return {total, life, area};
    case Prefer::kTotalAreaLife: return {total, area, life};
    case Prefer::kLifeAreaTotal: return {life, area, total};
    case Prefer::kAreaTotalLife: return {area, total, life};
    case Prefer::kSize: return {bytes, life, 0};
    case Prefer::kTotalSize: return {total, bytes, life};
    case Prefer::kArea: return {area, bytes, 0};
    case Prefer::kSizeFreeTime: return {bytes, static_cast<double>(r.upper), 0};
    case Prefer::kFreeTime: return {static_cast<double>(r.upper), -static_cast<double>(r.lower), bytes};
    case Prefer::kSizeInput: return {bytes, 0, 0};
    case Prefer::kLifeSize: return {life, bytes, 0};
    case Prefer::kStartSize: return {-static_cast<double>(r.lower), bytes, 0};
    case Prefer::kStartLife: return {-static_cast<double>(r.lower), life, 0};
    case Prefer::kEnd: return {static_cast<double>(r.upper), -static_cast<double>(r.lower), 0};
  }
  return {};
}

bool knows_totals(Prefer prefer) {
  return prefer == Prefer::kTotalLifeArea || prefer == Prefer::kTotalAreaLife || prefer == Prefer::kLifeAreaTotal ||
         prefer == Prefer::kAreaTotalLife || prefer == Prefer::kTotalSize;
}

}  // namespace

std::vector<std::int32_t> preference(const LayoutInstance& instance, Prefer prefer) {
  const std::vector<std::int64_t> total =
      knows_totals(prefer) ? totals(instance) : std::vector<std::int64_t>(instance.rects.size());
  std::vector<Key> keys;
  keys.reserve(total.size());
  for (std::size_t i = 0; i < total.size(); ++i)
    keys.push_back(
        key_of(prefer, instance.rects[i], static_cast<double>(total[i]), static_cast<double>(instance.life[i])));
  std::vector<std::int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return keys[a] > keys[b]; });
  return order;
}

std::vector<std::int32_t> preference(const LayoutInstance& instance, Band band, Prefer prefer, Prefer rest) {
  std::vector<std::int32_t> order = preference(instance, prefer);
  if (band == Band::kNone || order.empty()) return order;
  std::vector<std::int32_t> place(order.size());
  const std::vector<std::int32_t> others = preference(instance, rest);
  for (std::size_t k = 0; k < others.size(); ++k) place[others[k]] = static_cast<std::int32_t>(k);
  const std::vector<std::int64_t> live = live_profile(instance.rects, instance.times), total = totals(instance);
  const auto fullest = static_cast<std::int32_t>(std::max_element(live.begin(), live.end()) - live.begin());
  const auto rank = [&](std::int32_t i) {
    const Rect& r = instance.rects[i];
    if (band == Band::kFullest) return r.lower <= fullest && fullest < r.upper ? 0 : 1;
    const double full = static_cast<double>(total[i]) / static_cast<double>(instance.bound);
    return full > 0.99 ? 0 : full > 0.97 ? 1 : full > 0.95 ? 2 : 3;
  };
  const int last = band == Band::kFullest ? 1 : 3;
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const int ra = rank(a), rb = rank(b);
    return ra != rb ? ra < rb : ra == last && place[a] < place[b];
  });
  return order;
}

}  // namespace stowage
