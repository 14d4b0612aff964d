#include "layout/list_fit.h"

#include <algorithm>
#include <limits>

namespace stowage {

PlacedRects::PlacedRects(std::size_t capacity) {
  begin_.reserve(capacity);
  end_.reserve(capacity);
  lower_.reserve(capacity);
  upper_.reserve(capacity);
}

void PlacedRects::clear() {
  begin_.clear();
  end_.clear();
  lower_.clear();
  upper_.clear();
}

std::int64_t PlacedRects::find(const Rect& rect, Gap gap) const {
  std::int64_t top = 0, best = -1, best_size = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    if (lower_[i] >= rect.upper || upper_[i] <= rect.lower) continue;
    const std::int64_t room = begin_[i] - top;
    if (room >= rect.bytes && room < best_size) {
      if (gap == Gap::kLowest) return top;
      best = top;
      best_size = room;
    }
    top = std::max(top, end_[i]);
  }
  return best >= 0 ? best : top;
}

void PlacedRects::insert(const Rect& rect, std::int64_t offset) {
  const auto at = std::upper_bound(begin_.begin(), begin_.end(), offset) - begin_.begin();
  begin_.insert(begin_.begin() + at, offset);
  end_.insert(end_.begin() + at, offset + rect.bytes);
  lower_.insert(lower_.begin() + at, rect.lower);
  upper_.insert(upper_.begin() + at, rect.upper);
}

Offsets list_fit(const LayoutInstance& instance, std::span<const std::int32_t> order, Gap gap) {
  PlacedRects placed(order.size());
  Offsets result{std::vector<std::int64_t>(instance.rects.size()), 0};
  for (const std::int32_t i : order) {
    const Rect& rect = instance.rects[i];
    const std::int64_t at = placed.find(rect, gap);
    placed.insert(rect, at);
    result.at[i] = at;
    result.height = std::max(result.height, at + rect.bytes);
  }
  return result;
}

}  // namespace stowage
