#include "layout/list_fit.h"

#include <algorithm>

#include "layout/free_gaps.h"

namespace stowage {
namespace {

template <class Placed>
Offsets fit(const LayoutInstance& instance, std::span<const std::int32_t> order, Gap gap, Placed placed,
            std::int64_t& work, std::int64_t ceiling) {
  Offsets result{std::vector<std::int64_t>(instance.rects.size()), 0};
  for (const std::int32_t i : order) {
    if (work <= 0) return {};
    const Rect& rect = instance.rects[i];
    const std::int64_t at = placed.find(rect, gap, work);
    placed.insert(rect, at, work);
    result.at[i] = at;
    result.height = std::max(result.height, at + rect.bytes);
    if (result.height >= ceiling) return {};
  }
  return result;
}

}  // namespace

Offsets list_fit(const LayoutInstance& instance, std::span<const std::int32_t> order, Gap gap, std::int64_t& work,
                 std::int64_t ceiling) {
  constexpr std::size_t kFlat = 5000;  // rects; below, a flat scan is faster than a tree
  if (order.size() <= kFlat) return fit(instance, order, gap, PlacedList(order.size()), work, ceiling);
  return fit(instance, order, gap, FreeGaps(instance.rects, instance.times), work, ceiling);
}

}  // namespace stowage
