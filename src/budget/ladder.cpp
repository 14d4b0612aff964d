#include "budget/ladder.h"

#include <algorithm>

namespace stowage::budget {
namespace {

// In a graph of more than kSmallOps ops: rungs below the first one that are looked at, and those of them whose plan is improved
constexpr int kLooks = 8, kImproved = 3;

// More rungs lose less between a budget and the rung below it, and cost more plans; of a small graph all rungs below
// are looked at.
std::int32_t rungs_for(std::int32_t ops) { return ops <= kSmallOps ? 48 : ops < 1500 ? 160 : ops < 6000 ? 64 : 40; }

constexpr int kHalvingsBetweenRungs = 4;

}  // namespace

Ladder::Ladder(const Recipes& recipes, std::span<const std::vector<OpId>> orders, std::int64_t floor, std::int64_t top,
               const FitOptions& options)
    : recipes_(recipes),
      orders_(orders),
      floor_(floor),
      top_(std::max(top, floor)),
      options_(options),
      rungs_(rungs_for(recipes.ops)),
      bound_(recipes, options.link, options.bound_work) {}

std::int64_t Ladder::rung(std::int32_t i) const {
  const std::int64_t align = recipes_.graph->align;
  return floor_ + (top_ - floor_) / align * i / rungs_ * align;
}

const std::optional<Fitted>& Ladder::at(std::int64_t capacity) {
  auto [entry, fresh] = fitted_.try_emplace(capacity);
  if (fresh) {
    options_.least_ns = recipes_.ops <= kSmallOps ? bound_.at(capacity) : bound_.known(capacity);
    entry->second = fit_budget(recipes_, orders_, capacity, options_);
  }
  return entry->second;
}

const std::optional<Fitted>& Ladder::improved_at(std::int64_t capacity) {
  at(capacity);
  std::optional<Fitted>& fitted = fitted_.at(capacity);
  if (improved_.insert(capacity).second && fitted && fitted->schedule.step_ns > bound_.known(capacity))
    improve_fit(recipes_, *fitted, capacity, options_);
  return fitted;
}

std::optional<Fitted> Ladder::best_within(std::int64_t capacity) {
  const Fitted* best = nullptr;
  int looks = 0;
  const auto consider = [&](std::int64_t bytes) {
    const bool improved = recipes_.ops <= kSmallOps || looks <= kImproved;
    const std::optional<Fitted>& fitted = improved ? improved_at(bytes) : at(bytes);
    if (fitted && fitted->layout.height_bytes <= capacity &&
        (best == nullptr || fitted->schedule.step_ns < best->schedule.step_ns))
      best = &*fitted;
    return fitted.has_value();
  };
  bound_.at(capacity);
  bool failed = false;
  // In a small graph, the rung above the budget, too: its plan may need no more
  const std::int32_t above = recipes_.ops <= kSmallOps ? 1 : 0;
  for (std::int32_t i = rungs_ - 1; i >= 0 && !stopped(); --i) {
    if (rung(std::max(0, i - above)) > capacity) continue;
    if (rung(i) < bound_.least_capacity()) break;
    if (best != nullptr && best->schedule.step_ns <= bound_.known(rung(i))) return *best;
    if (recipes_.ops > kSmallOps && ++looks > kLooks) break;
    if (consider(rung(i))) continue;
    // Below the first rung without a plan lies the smallest, perhaps between rungs; rungs further down have one by
    // luck.
    if (!failed && smallest() <= capacity) consider(smallest());
    failed = true;
    if (recipes_.ops > kSmallOps) break;
  }
  if (best == nullptr && smallest() <= capacity) consider(smallest());
  return best != nullptr ? std::optional(*best) : std::nullopt;
}

std::int64_t Ladder::smallest() {
  if (smallest_) return *smallest_;
  std::int64_t no = floor_ - 1, yes = top_;
  if (at(floor_)) yes = floor_;
  std::int32_t low = 0, high = rungs_;
  while (high - low > 1 && yes > floor_ && !stopped()) {
    const std::int32_t middle = (low + high) / 2;
    (at(rung(middle)) ? high : low) = middle;
  }
  if (yes > floor_) {
    no = rung(low);
    yes = high == rungs_ ? top_ : rung(high);
  }
  const std::int64_t align = recipes_.graph->align;
  for (int i = 0; i < kHalvingsBetweenRungs && yes - no > align && yes > floor_ && !stopped(); ++i) {
    const std::int64_t middle = no + (yes - no) / 2 / align * align;
    if (middle <= no) break;
    (at(middle) ? yes : no) = middle;
  }
  smallest_ = yes;
  return yes;
}

}  // namespace stowage::budget
