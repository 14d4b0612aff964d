#include "rivals/llfb.h"

#include <algorithm>
#include <list>
#include <map>
#include <numeric>
#include <tuple>

namespace stowage::rivals {
namespace {

struct Ledge {
  std::int64_t lower, upper, height;
};

class Skyline {
 public:
  Skyline(const std::vector<LayoutItem>& items, std::int64_t align)
      : items_(items), align_(align), offsets_(items.size(), 0) {
    for (std::size_t i = 0; i < items.size(); ++i)
      if (items[i].bytes > 0 && items[i].lower < items[i].upper) by_lower_.emplace(items[i].lower, i);
  }

  std::vector<std::int64_t> run() {
    if (by_lower_.empty()) return std::move(offsets_);
    std::int64_t end = INT64_MIN;
    for (const auto& [lower, i] : by_lower_) end = std::max(end, items_[i].upper);
    ledges_.push_back({by_lower_.begin()->first, end, 0});
    while (!by_lower_.empty()) {
      const auto ledge = std::min_element(ledges_.begin(), ledges_.end(),
                                          [](const Ledge& a, const Ledge& b) { return a.height < b.height; });
      const auto chosen = longest_on(*ledge);
      if (chosen == by_lower_.end()) {
        raise(ledge);
      } else {
        place(ledge, chosen->second);
        by_lower_.erase(chosen);
      }
    }
    return std::move(offsets_);
  }

 private:
  using Unplaced = std::multimap<std::int64_t, std::size_t>;
  using LedgeIt = std::list<Ledge>::iterator;

  Unplaced::iterator longest_on(const Ledge& ledge) {
    auto best = by_lower_.end();
    std::tuple<std::int64_t, std::int64_t> best_key{-1, -1};
    for (auto it = by_lower_.lower_bound(ledge.lower); it != by_lower_.end() && it->first < ledge.upper; ++it) {
      const LayoutItem& item = items_[it->second];
      const std::tuple key{item.upper - item.lower, item.bytes};
      if (item.upper <= ledge.upper && key > best_key) best = it, best_key = key;
    }
    return best;
  }

  void place(LedgeIt ledge, std::size_t i) {
    const LayoutItem& item = items_[i];
    offsets_[i] = ledge->height;
    if (ledge->lower < item.lower) ledges_.insert(ledge, {ledge->lower, item.lower, ledge->height});
    if (item.upper < ledge->upper) ledges_.insert(std::next(ledge), {item.upper, ledge->upper, ledge->height});
    *ledge = {item.lower, item.upper, ledge->height + (item.bytes + align_ - 1) / align_ * align_};
    join_neighbours(ledge);
  }

  void raise(LedgeIt ledge) {
    std::int64_t height = INT64_MAX;
    if (ledge != ledges_.begin()) height = std::prev(ledge)->height;
    if (std::next(ledge) != ledges_.end()) height = std::min(height, std::next(ledge)->height);
    ledge->height = height;
    join_neighbours(ledge);
  }

  void join_neighbours(LedgeIt ledge) {
    if (ledge != ledges_.begin() && std::prev(ledge)->height == ledge->height) {
      ledge->lower = std::prev(ledge)->lower;
      ledges_.erase(std::prev(ledge));
    }
    if (std::next(ledge) != ledges_.end() && std::next(ledge)->height == ledge->height) {
      ledge->upper = std::next(ledge)->upper;
      ledges_.erase(std::next(ledge));
    }
  }

  const std::vector<LayoutItem>& items_;
  std::int64_t align_;
  std::vector<std::int64_t> offsets_;
  Unplaced by_lower_;
  std::list<Ledge> ledges_;
};

}  // namespace

std::vector<std::int64_t> llfb_layout(const std::vector<LayoutItem>& items, std::int64_t align) {
  return Skyline(items, align).run();
}

}  // namespace stowage::rivals
