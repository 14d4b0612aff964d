#include "rivals/greedy_fit.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "layout/free_gaps.h"
#include "layout/instance.h"
#include "layout/sections.h"

namespace stowage::rivals {
namespace {

std::tuple<double, double> rank_of(const LayoutItem& item, Serve serve) {
  const auto bytes = static_cast<double>(item.bytes), life = static_cast<double>(item.upper - item.lower);
  switch (serve) {
    case Serve::kSize: return {bytes, life};
    case Serve::kArea: return {bytes * life, bytes};
    case Serve::kLifetime: return {life, bytes};
    case Serve::kStart: return {-static_cast<double>(item.lower), bytes};
    case Serve::kStartLife: return {-static_cast<double>(item.lower), life};
    case Serve::kEnd: return {static_cast<double>(item.upper), -static_cast<double>(item.lower)};
  }
  return {};
}

struct Placed {
  std::int64_t begin, end;  // addresses
  std::size_t item;
};

// `placed` is sorted by address; `bytes` is padded.
std::int64_t gap_for(const std::vector<LayoutItem>& items, const std::vector<Placed>& placed, const LayoutItem& item,
                     std::int64_t bytes, Fit fit) {
  std::int64_t top = 0, best = -1, best_size = INT64_MAX;
  for (const Placed& other : placed) {
    if (items[other.item].upper <= item.lower || item.upper <= items[other.item].lower) continue;
    const std::int64_t size = other.begin - top;
    if (size >= bytes && size < best_size) {
      best = top, best_size = size;
      if (fit == Fit::kFirst) return best;
    }
    top = std::max(top, other.end);
  }
  return best >= 0 ? best : top;
}

std::vector<std::size_t> served(const std::vector<LayoutItem>& items, Serve serve) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rank_of(items[a], serve) > rank_of(items[b], serve); });
  return order;
}

}  // namespace

std::vector<std::int64_t> greedy_layout(const std::vector<LayoutItem>& items, std::int64_t align, Serve serve,
                                        Fit fit) {
  std::vector<std::int64_t> offsets(items.size(), 0);
  std::vector<Placed> placed;
  for (const std::size_t i : served(items, serve)) {
    if (items[i].bytes == 0 || items[i].lower >= items[i].upper) continue;
    const std::int64_t bytes = (items[i].bytes + align - 1) / align * align;
    const std::int64_t at = gap_for(items, placed, items[i], bytes, fit);
    offsets[i] = at;
    const auto behind =
        std::upper_bound(placed.begin(), placed.end(), at, [](std::int64_t a, const Placed& p) { return a < p.begin; });
    placed.insert(behind, {at, at + bytes, i});
  }
  return offsets;
}

std::vector<std::int64_t> greedy_layout_of_many(const std::vector<LayoutItem>& items, std::int64_t align, Serve serve,
                                                Fit fit) {
  const LayoutInstance instance = by_sections(make_instance(items, align));
  std::vector<std::int32_t> rect_of(items.size(), -1);
  for (std::size_t r = 0; r < instance.item.size(); ++r) rect_of[instance.item[r]] = static_cast<std::int32_t>(r);
  std::vector<std::int64_t> offsets(items.size(), 0);
  FreeGaps gaps(instance.rects, instance.times);
  std::int64_t work = 0;
  for (const std::size_t i : served(items, serve)) {
    if (rect_of[i] < 0) continue;
    const Rect& rect = instance.rects[rect_of[i]];
    offsets[i] = gaps.find(rect, fit == Fit::kFirst ? Gap::kLowest : Gap::kTightest, work);
    gaps.insert(rect, offsets[i], work);
  }
  return offsets;
}

std::int64_t height(const std::vector<LayoutItem>& items, const std::vector<std::int64_t>& offsets) {
  std::int64_t top = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].lower < items[i].upper && items[i].bytes > 0) top = std::max(top, offsets[i] + items[i].bytes);
  return top;
}

}  // namespace stowage::rivals
