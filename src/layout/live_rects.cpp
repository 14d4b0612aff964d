#include "layout/live_rects.h"

namespace stowage {

LiveRects::LiveRects(std::int32_t times, std::size_t rects) : node_(rects), slot_(rects) {
  while (size_ < times) size_ *= 2;
  nodes_.resize(2 * static_cast<std::size_t>(size_));
  below_.assign(nodes_.size(), 0);
}

void LiveRects::insert(std::int32_t i, const Rect& rect, std::int64_t offset, float price) {
  std::size_t node = 1;
  std::int32_t from = 0, to = size_;
  ++below_[node];
  while (to - from > 1) {
    const std::int32_t middle = from + (to - from) / 2;
    if (rect.lower < middle && rect.upper > middle) break;
    node = 2 * node + (rect.lower >= middle ? 1 : 0);
    (rect.lower >= middle ? from : to) = middle;
    ++below_[node];
  }
  node_[i] = static_cast<std::int32_t>(node);
  slot_[i] = static_cast<std::int32_t>(nodes_[node].size());
  nodes_[node].push_back({offset, offset + rect.bytes, rect.lower, rect.upper, i, price});
}

void LiveRects::remove(std::int32_t i) {
  auto node = static_cast<std::size_t>(node_[i]);
  std::vector<Placed>& here = nodes_[node];
  here[slot_[i]] = here.back();
  slot_[here[slot_[i]].rect] = slot_[i];
  here.pop_back();
  for (; node > 0; node /= 2) --below_[node];
}

void LiveRects::gather(const Rect& rect, std::vector<Placed>& met, std::int64_t& looked) const {
  met.clear();
  gather(1, 0, size_, rect, met, looked);
}

void LiveRects::gather(std::size_t node, std::int32_t from, std::int32_t to, const Rect& rect, std::vector<Placed>& met,
                       std::int64_t& looked) const {
  if (below_[node] == 0 || rect.upper <= from || to <= rect.lower) return;
  for (const Placed& p : nodes_[node])
    if (p.lower < rect.upper && rect.lower < p.upper) met.push_back(p);
  looked += static_cast<std::int64_t>(nodes_[node].size()) + 2;
  if (to - from == 1) return;
  const std::int32_t middle = from + (to - from) / 2;
  gather(2 * node, from, middle, rect, met, looked);
  gather(2 * node + 1, middle, to, rect, met, looked);
}

}  // namespace stowage
