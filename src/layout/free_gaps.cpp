#include "layout/free_gaps.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace stowage {
namespace {

constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();

}  // namespace

FreeGaps::FreeGaps(const std::vector<Rect>& rects, std::int32_t times) {
  while (size_ < static_cast<std::uint32_t>(times)) {
    size_ *= 2;
    ++levels_;
  }
  constexpr double kPushes = 8;  // of a rect
  double lives = 1;
  for (const Rect& r : rects) lives += r.upper - r.lower;
  for (double nodes = 2 * lives / size_; nodes <= kPushes * static_cast<double>(rects.size()) && shared_ < levels_;
       nodes *= 2)
    ++shared_;
  touch_.resize(2 * std::size_t{size_});
  cover_.resize(2 * std::size_t{size_});
}

void FreeGaps::cover(std::uint32_t node, std::int64_t begin, std::int64_t end) {
  cover_[node].add(begin, end);
  ++added_;
  const int level = static_cast<int>(std::bit_width(node)) - 1;
  for (int d = level + 1; d <= shared_; ++d) {
    added_ += std::int64_t{1} << (d - level);
    for (std::uint32_t below = node << (d - level); below < (node + 1) << (d - level); ++below)
      cover_[below].add(begin, end);
  }
}

void FreeGaps::insert(const Rect& rect, std::int64_t offset, std::int64_t& work) {
  constexpr std::int64_t kAdd = 15;  // the looks that an addition costs
  const std::int64_t end = offset + rect.bytes;
  added_ = levels_;
  std::uint32_t l = size_ + static_cast<std::uint32_t>(rect.lower), r = size_ + static_cast<std::uint32_t>(rect.upper);
  const std::uint32_t first = l, past = r;
  for (; l < r; l /= 2, r /= 2) {
    for (const std::uint32_t node : {l & 1 ? l++ : 0, r & 1 ? --r : 0})
      if (node != 0) {
        touch_[node].add(offset, end);
        cover(node, offset, end);
      }
  }
  for (int i = 1; i <= levels_; ++i) {
    const std::uint32_t left = first >> i, right = (past - 1) >> i;
    const bool in_left = (left << i) != first, in_right = (((past >> i) << i) != past);
    if (in_left) touch_[left].add(offset, end);
    if (in_right && !(in_left && left == right)) touch_[right].add(offset, end);
  }
  work -= kAdd * added_;
}

// The sets whose union is taken at some time of the rect's life.
void FreeGaps::collect(const Rect& rect) {
  cursors_.clear();
  const auto use = [this](const BlockSet& set) {
    if (!set.empty()) cursors_.emplace_back(set);
  };
  std::uint32_t l = size_ + static_cast<std::uint32_t>(rect.lower), r = size_ + static_cast<std::uint32_t>(rect.upper);
  const std::uint32_t first = l, past = r;
  for (; l < r; l /= 2, r /= 2)
    for (const std::uint32_t node : {l & 1 ? l++ : 0, r & 1 ? --r : 0})
      if (node != 0) {
        use(touch_[node]);
        if (static_cast<int>(std::bit_width(node)) - 1 <= shared_) use(cover_[node]);
      }
  for (int i = 1; i <= levels_ - shared_; ++i) {
    const std::uint32_t left = first >> i, right = (past - 1) >> i;
    const bool in_left = (left << i) != first, in_right = (((past >> i) << i) != past);
    if (in_left) use(cover_[left]);
    if (in_right && !(in_left && left == right)) use(cover_[right]);
  }
}

// The lowest address at or above `from` where so many bytes are in no set.
std::int64_t FreeGaps::next_gap(std::int64_t from, std::int64_t bytes) {
  std::size_t agree = 0;
  for (std::size_t k = 0; agree < cursors_.size(); k = k + 1 == cursors_.size() ? 0 : k + 1) {
    const std::int64_t lifted = cursors_[k].lift(from, bytes, looked_);
    agree = lifted != from ? 1 : agree + 1;
    from = lifted;
  }
  return from;
}

std::int64_t FreeGaps::end_of_gap(std::int64_t from) const {
  std::int64_t end = kOpen;
  for (const BlockSet::Cursor& c : cursors_) end = std::min(end, c.gap_end());
  return std::max(end, from);
}

std::int64_t FreeGaps::find(const Rect& rect, Gap gap, std::int64_t& work) {
  collect(rect);
  looked_ = 10 + 2 * levels_;
  std::int64_t at = next_gap(0, rect.bytes), best = at;
  if (gap == Gap::kTightest) {
    for (std::int64_t room = kOpen;;) {
      const std::int64_t end = end_of_gap(at);
      if (end == kOpen) {
        if (room == kOpen) best = at;
        break;
      }
      if (end - at < room) {
        best = at;
        room = end - at;
        if (room == rect.bytes) break;
      }
      at = next_gap(end, rect.bytes);
    }
  }
  work -= looked_;
  return best;
}

}  // namespace stowage
