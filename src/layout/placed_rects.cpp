#include "layout/placed_rects.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace stowage {
namespace {

// Finds a gap while neighbours come by in offset order.
class GapFinder {
 public:
  GapFinder(std::int64_t bytes, Gap gap) : bytes_(bytes), gap_(gap) {}

  // False when the answer is settled.
  bool pass(std::int64_t begin, std::int64_t end) {
    const std::int64_t room = begin - top_;
    if (room >= bytes_ && room < best_room_) {
      best_ = top_;
      best_room_ = room;
      if (gap_ == Gap::kLowest) return false;
    }
    top_ = std::max(top_, end);
    return true;
  }
  [[nodiscard]] std::int64_t offset() const { return best_ >= 0 ? best_ : top_; }

 private:
  std::int64_t bytes_;
  Gap gap_;
  std::int64_t top_ = 0, best_ = -1, best_room_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

PlacedList::PlacedList(std::size_t capacity) {
  begin_.reserve(capacity);
  end_.reserve(capacity);
  lower_.reserve(capacity);
  upper_.reserve(capacity);
}

std::int64_t PlacedList::find(const Rect& rect, Gap gap, std::int64_t& work) const {
  constexpr std::size_t kBlock = 64;
  GapFinder finder(rect.bytes, gap);
  for (std::size_t from = 0; from < begin_.size(); from += kBlock) {
    // Which of the block meet the rect in time, without a branch: about a quarter do, in no pattern that could be foreseen.
    const std::size_t count = std::min(kBlock, begin_.size() - from);
    std::uint64_t meets = 0;
    for (std::size_t i = 0; i < count; ++i)
      meets |= static_cast<std::uint64_t>((lower_[from + i] < rect.upper) & (rect.lower < upper_[from + i])) << i;
    for (; meets != 0; meets &= meets - 1) {
      const std::size_t i = from + static_cast<std::size_t>(std::countr_zero(meets));
      if (finder.pass(begin_[i], end_[i])) continue;
      work -= static_cast<std::int64_t>(i) + 1;
      return finder.offset();
    }
  }
  work -= static_cast<std::int64_t>(begin_.size()) + 1;
  return finder.offset();
}

void PlacedList::insert(const Rect& rect, std::int64_t offset) {
  const auto at = std::upper_bound(begin_.begin(), begin_.end(), offset) - begin_.begin();
  begin_.insert(begin_.begin() + at, offset);
  end_.insert(end_.begin() + at, offset + rect.bytes);
  lower_.insert(lower_.begin() + at, rect.lower);
  upper_.insert(upper_.begin() + at, rect.upper);
}

PlacedTree::PlacedTree(std::int32_t times) {
  while (size_ < times) size_ *= 2;
  nodes_.resize(2 * static_cast<std::size_t>(size_));
  used_.assign(nodes_.size(), 0);
}

void PlacedTree::gather(std::size_t node, std::int32_t from, std::int32_t to, const Rect& rect) {
  if (!used_[node] || rect.upper <= from || to <= rect.lower) return;
  for (const Placed& p : nodes_[node])
    if (p.lower < rect.upper && rect.lower < p.upper) met_.emplace_back(p.begin, p.end);
  looked_ += static_cast<std::int64_t>(nodes_[node].size()) + 1;
  if (to - from == 1) return;
  const std::int32_t middle = from + (to - from) / 2;
  gather(2 * node, from, middle, rect);
  gather(2 * node + 1, middle, to, rect);
}

std::int64_t PlacedTree::find(const Rect& rect, Gap gap, std::int64_t& work) {
  met_.clear();
  looked_ = 0;
  gather(1, 0, size_, rect);
  std::sort(met_.begin(), met_.end());
  GapFinder finder(rect.bytes, gap);
  for (const auto& [begin, end] : met_)
    if (!finder.pass(begin, end)) break;
  work -= 4 * looked_ + 40 * static_cast<std::int64_t>(met_.size());  // in units of a flat scan
  return finder.offset();
}

void PlacedTree::insert(const Rect& rect, std::int64_t offset) {
  std::size_t node = 1;
  std::int32_t from = 0, to = size_;
  used_[node] = 1;
  while (to - from > 1) {
    const std::int32_t middle = from + (to - from) / 2;
    if (rect.lower < middle && rect.upper > middle) break;
    node = 2 * node + (rect.lower >= middle ? 1 : 0);
    (rect.lower >= middle ? from : to) = middle;
    used_[node] = 1;
  }
  nodes_[node].push_back({offset, offset + rect.bytes, rect.lower, rect.upper});
}

}  // namespace stowage
