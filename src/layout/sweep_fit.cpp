#include "layout/sweep_fit.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace stowage {
namespace {

class Arena {
 public:
  std::int64_t allocate(std::int64_t bytes) {
    const std::int64_t at = find(bytes);
    if (at < 0) return grow(bytes);
    const std::int64_t size = free_[at];
    take_block(at, size);
    if (size > bytes) add_block(at + bytes, size - bytes);
    return at;
  }

  void release(std::int64_t at, std::int64_t bytes) {
    auto next = free_.lower_bound(at);
    if (next != free_.begin()) {
      const auto [left, size] = *std::prev(next);
      if (left + size == at) {
        take_block(left, size);
        at = left;
        bytes += size;
        next = free_.lower_bound(at);
      }
    }
    if (next != free_.end() && at + bytes == next->first) {
      const auto [right, size] = *next;
      take_block(right, size);
      bytes += size;
    }
    add_block(at, bytes);
  }

  [[nodiscard]] std::int64_t height() const { return end_; }

 private:
  std::int64_t find(std::int64_t bytes) const {
    const auto it = by_size_.lower_bound({bytes, 0});
    return it == by_size_.end() ? -1 : it->second;
  }

  std::int64_t grow(std::int64_t bytes) {
    std::int64_t at = end_;
    if (!free_.empty()) {
      const auto [last, size] = *free_.rbegin();
      if (last + size == end_) {
        at = last;
        take_block(last, size);
      }
    }
    end_ = at + bytes;
    return at;
  }

  void add_block(std::int64_t at, std::int64_t size) {
    free_[at] = size;
    by_size_.insert({size, at});
  }

  void take_block(std::int64_t at, std::int64_t size) {
    free_.erase(at);
    by_size_.erase({size, at});
  }

  std::int64_t end_ = 0;
  std::map<std::int64_t, std::int64_t> free_;  // offset -> size
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
};

std::vector<std::int32_t> sorted_by(std::size_t n, auto less) {
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), less);
  return order;
}

}  // namespace

Offsets sweep_fit(const LayoutInstance& instance) {
  const auto& rects = instance.rects;
  const auto births = sorted_by(rects.size(), [&](std::int32_t a, std::int32_t b) {
    if (rects[a].lower != rects[b].lower) return rects[a].lower < rects[b].lower;
    if (rects[a].upper != rects[b].upper) return rects[a].upper > rects[b].upper;
    return a < b;
  });
  const auto deaths = sorted_by(rects.size(), [&](std::int32_t a, std::int32_t b) {
    return rects[a].upper != rects[b].upper ? rects[a].upper < rects[b].upper : a < b;
  });
  Offsets result{std::vector<std::int64_t>(rects.size()), 0};
  Arena arena;
  std::size_t dead = 0;
  for (const std::int32_t i : births) {
    for (; dead < deaths.size() && rects[deaths[dead]].upper <= rects[i].lower; ++dead)
      arena.release(result.at[deaths[dead]], rects[deaths[dead]].bytes);
    result.at[i] = arena.allocate(rects[i].bytes);
  }
  result.height = arena.height();
  return result;
}

}  // namespace stowage
