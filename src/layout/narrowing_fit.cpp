#include "layout/narrowing_fit.h"

#include <algorithm>
#include <array>
#include <utility>

#include "layout/instance.h"
#include "layout/preferences.h"

namespace stowage {
namespace {

constexpr std::size_t kMostItems = 6000;
constexpr int kMostTurns = 400;
constexpr std::array kOrders = {Prefer::kSize,     Prefer::kTotalSize, Prefer::kArea,         Prefer::kLifeAreaTotal,
                                Prefer::kFreeTime, Prefer::kLifeSize,  Prefer::kSizeFreeTime, Prefer::kTotalLifeArea};

struct Part {
  std::int64_t lower = 0, upper = 0;
  std::int64_t above = 0;  // the item's offset
  std::int64_t bytes = 0;  // 0: there is none
};

using Parts = std::array<Part, 2>;

Parts parts_of(const LayoutItem& item, std::int64_t align) {
  const auto padded = [align](std::int64_t bytes) { return (bytes + align - 1) / align * align; };
  const std::int64_t bytes = padded(item.bytes);
  if (item.bytes <= 0 || item.upper <= item.lower) return {};
  if (!narrows(item)) return {Part{item.lower, item.upper, 0, bytes}, Part{}};
  const std::int64_t narrow = padded(item.narrow_bytes);
  return {Part{item.lower, item.upper, 0, narrow}, Part{item.lower, item.narrow_from, narrow, bytes - narrow}};
}

class NarrowingFit {
 public:
  NarrowingFit(const std::vector<LayoutItem>& items, std::int64_t align, std::int64_t ceiling, std::int64_t& work,
               const std::function<bool()>& should_stop)
      : align_(align), height_(ceiling), work_(work), should_stop_(should_stop), at_(items.size(), 0) {
    for (const LayoutItem& item : items) parts_.push_back(parts_of(item, align));
    bound_ = narrowing_bound(items, align);
  }

  std::vector<std::int64_t> run(const std::vector<LayoutItem>& items) {
    const LayoutInstance instance = make_instance(items, align_);
    std::vector<std::int32_t> first;  // the best order
    for (const Prefer prefer : kOrders) {
      std::vector<std::int32_t> order = preference(instance, Band::kNone, prefer, prefer);
      for (std::int32_t& rect : order) rect = instance.item[static_cast<std::size_t>(rect)];
      if (fit(order) || first.empty()) first = std::move(order);
      if (done()) return std::move(best_);
    }
    for (int turn = 0; turn < kMostTurns && !done(); ++turn) {
      bring_forward(first);
      fit(first);
    }
    return std::move(best_);
  }

 private:
  [[nodiscard]] bool done() const {
    return work_ <= 0 || (!best_.empty() && height_ <= bound_) || (should_stop_ && should_stop_());
  }

  // True when it is the lowest so far.
  bool fit(const std::vector<std::int32_t>& order) {
    placed_.clear();
    std::int64_t top = 0;
    for (const std::int32_t item : order) {
      const Parts& parts = parts_[static_cast<std::size_t>(item)];
      const std::int64_t at = lowest(parts);
      at_[static_cast<std::size_t>(item)] = at;
      for (const Part& part : parts) {
        if (part.bytes == 0) continue;
        placed_.push_back({part.lower, part.upper, at + part.above, part.bytes});
        top = std::max(top, at + part.above + part.bytes);
      }
    }
    top_ = top;
    if (top >= height_) return false;
    height_ = top;
    best_ = at_;
    return true;
  }

  std::int64_t lowest(const Parts& parts) {
    taken_.clear();
    for (const Part& part : parts) {
      if (part.bytes == 0) continue;
      for (const Part& other : placed_)
        if (other.lower < part.upper && part.lower < other.upper)
          taken_.emplace_back(other.above - part.above - part.bytes, other.above + other.bytes - part.above);
    }
    work_ -= static_cast<std::int64_t>(placed_.size() + 8 * taken_.size());
    std::sort(taken_.begin(), taken_.end());
    std::int64_t at = 0;
    for (const auto& [from, to] : taken_) {  // open intervals
      if (from >= at) break;
      at = std::max(at, to);
    }
    return at;
  }

  // Those that reach the top of the last fit go a quarter of the way to the front.
  void bring_forward(std::vector<std::int32_t>& order) const {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto item = static_cast<std::size_t>(order[i]);
      std::int64_t reach = 0;
      for (const Part& part : parts_[item])
        if (part.bytes > 0) reach = std::max(reach, at_[item] + part.above + part.bytes);
      if (reach < top_) continue;
      const auto to = static_cast<std::ptrdiff_t>(i - i / 4 - (i > 0 ? 1 : 0));
      const auto from = static_cast<std::ptrdiff_t>(i);
      if (to < from) std::rotate(order.begin() + to, order.begin() + from, order.begin() + from + 1);
    }
  }

  std::int64_t align_, height_, bound_ = 0, top_ = 0;
  std::int64_t& work_;
  const std::function<bool()>& should_stop_;
  std::vector<Parts> parts_;
  std::vector<Part> placed_;  // at their addresses
  std::vector<std::pair<std::int64_t, std::int64_t>> taken_;
  std::vector<std::int64_t> at_, best_;
};

}  // namespace

bool narrows(const LayoutItem& item) {
  return item.bytes > 0 && item.narrow_bytes < item.bytes && item.lower < item.narrow_from &&
         item.narrow_from < item.upper;
}

std::int64_t narrowing_bound(const std::vector<LayoutItem>& items, std::int64_t align) {
  std::vector<LayoutItem> rects;
  std::int64_t slack = 0;  // padding counts between items, not above the topmost
  for (const LayoutItem& item : items) {
    const Parts parts = parts_of(item, align);
    for (const Part& part : parts)
      if (part.bytes > 0) rects.push_back({part.lower, part.upper, part.bytes});
    slack = std::max(slack, parts[0].bytes + parts[1].bytes - item.bytes);
  }
  return make_instance(rects, align).bound - slack;
}

std::vector<std::int64_t> narrowing_fit(const std::vector<LayoutItem>& items, std::int64_t align, std::int64_t ceiling,
                                        std::int64_t& work, const std::function<bool()>& should_stop) {
  if (items.size() > kMostItems) return {};
  return NarrowingFit(items, align, ceiling, work, should_stop).run(items);
}

}  // namespace stowage
