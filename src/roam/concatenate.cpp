#include "roam/concatenate.h"

#include <algorithm>
#include <numeric>

#include "roam/layout_ilp.h"

namespace stowage::roam {
namespace {

template <class T>
std::vector<T> picked(const std::vector<T>& from, const std::vector<std::int32_t>& ids) {
  std::vector<T> result;
  for (const std::int32_t i : ids) result.push_back(from[i]);
  return result;
}

class Concatenation {
 public:
  Concatenation(const std::vector<Rect>& rects, const std::vector<char>& activation, const RoamOptions& options,
                const IlpLimits& limits, RoamStats& stats)
      : rects_(rects),
        activation_(activation),
        options_(options),
        limits_(limits),
        stats_(stats),
        at_(rects.size(), 0) {}

  void stack_leaves(const std::vector<std::vector<std::int32_t>>& leaves) {
    std::int64_t base = 0;
    for (const auto& leaf : leaves) {
      if (leaf.empty()) continue;
      const LeafLayout layout =
          lay_out_leaf(picked(rects_, leaf), picked(activation_, leaf), options_, limits_, stats_);
      for (std::size_t k = 0; k < leaf.size(); ++k) at_[leaf[k]] = base + layout.offsets.at[k];
      base += options_.concatenation ? layout.activations_top : layout.offsets.height;
    }
  }

  void settle_conflicts() {
    find_neighbours();
    const std::vector<std::int32_t> evicted = evict();
    stats_.evicted += std::ssize(evicted);
    Floored problem{picked(rects_, evicted), {}};
    std::vector<char> gone(rects_.size(), 0);
    for (const std::int32_t i : evicted) gone[i] = 1;
    for (const std::int32_t i : evicted) {
      std::int64_t floor = 0;
      for (const std::int32_t j : neighbours_[i])
        if (!gone[j]) floor = std::max(floor, top(j));
      problem.floor.push_back(floor);
    }
    const LayoutIlpResult placed = place(problem, options_, limits_, stats_);
    for (std::size_t k = 0; k < evicted.size(); ++k) at_[evicted[k]] = placed.offsets.at[k];
  }

  void lower() {
    std::vector<std::int32_t> order(rects_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return at_[a] < at_[b]; });
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (const std::int32_t i : order) {
      taken.clear();
      for (const std::int32_t j : neighbours_[i]) taken.emplace_back(at_[j], top(j));
      at_[i] = lowest_gap(taken, 0, rects_[i].bytes);
    }
  }

  Offsets result() {
    std::int64_t height = 0;
    for (std::size_t i = 0; i < rects_.size(); ++i) height = std::max(height, top(static_cast<std::int32_t>(i)));
    return {std::move(at_), height};
  }

 private:
  [[nodiscard]] std::int64_t top(std::int32_t i) const { return at_[i] + rects_[i].bytes; }

  // Who lives at the same time, by a sweep.
  void find_neighbours() {
    neighbours_.assign(rects_.size(), {});
    std::vector<std::int32_t> order(rects_.size()), live;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return rects_[a].lower < rects_[b].lower; });
    for (const std::int32_t i : order) {
      std::erase_if(live, [&](std::int32_t j) { return rects_[j].upper <= rects_[i].lower; });
      for (const std::int32_t j : live) {
        neighbours_[i].push_back(j);
        neighbours_[j].push_back(i);
      }
      live.push_back(i);
    }
  }

  // From the largest down, who does not overlap one that stays stays.
  std::vector<std::int32_t> evict() const {
    std::vector<std::int32_t> order(rects_.size()), evicted;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      if (rects_[a].bytes != rects_[b].bytes) return rects_[a].bytes > rects_[b].bytes;
      return activation_[a] > activation_[b];
    });
    std::vector<char> stays(rects_.size(), 0);
    for (const std::int32_t i : order) {
      stays[i] = std::ranges::none_of(neighbours_[i],
                                      [&](std::int32_t j) { return stays[j] && at_[i] < top(j) && at_[j] < top(i); });
      if (!stays[i]) evicted.push_back(i);
    }
    std::sort(evicted.begin(), evicted.end());
    return evicted;
  }

  const std::vector<Rect>& rects_;
  const std::vector<char>& activation_;
  const RoamOptions& options_;
  const IlpLimits& limits_;
  RoamStats& stats_;
  std::vector<std::int64_t> at_;
  std::vector<std::vector<std::int32_t>> neighbours_;
};

}  // namespace

Offsets concatenate(const std::vector<Rect>& rects, const std::vector<char>& activation,
                    const std::vector<std::vector<std::int32_t>>& leaves, const RoamOptions& options,
                    const IlpLimits& limits, RoamStats& stats) {
  Concatenation all(rects, activation, options, limits, stats);
  all.stack_leaves(leaves);
  if (options.concatenation) {
    all.settle_conflicts();
    all.lower();
  }
  return all.result();
}

}  // namespace stowage::roam
