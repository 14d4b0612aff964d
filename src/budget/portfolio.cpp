#include "budget/portfolio.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/capped.h"

namespace stowage::budget {
namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
constexpr int kLeastExponent = -6, kMostExponent = 5;

}  // namespace

double Portfolio::price_of(int exponent) { return std::ldexp(0.04, exponent); }

std::int64_t Portfolio::cover_by(const std::vector<OpId>& order, const CoverRule& rule) {
  if (!pool_.empty() && pool_[0].ns <= program_ns_) return kNone;  // nothing is faster
  Attempt now{Sequence::of(order), 0};
  CoverRule within = rule;
  // What is undone later makes up for a part of it
  if (!pool_.empty()) within.most_cost = capped_sum(2 * (pool_[0].ns - program_ns_), program_ns_ / 50);
  std::int64_t work = pool_.empty() ? left_ : left_ / 2;  // where others have a plan, this one may not take all
  left_ -= work;
  const bool fits = cover(recipes_, now.sequence, options_.limit, options_.covering, within, work);
  if (fits) polish(recipes_, now, options_.limit, options_.link, work);
  left_ += std::max<std::int64_t>(0, work);
  if (!fits) return kNone;
  const std::int64_t ns = now.ns;
  pool_.add(std::move(now));
  return ns;
}

void Portfolio::add_order(const std::vector<OpId>& order, bool swap) {
  std::map<int, std::int64_t> tried;
  const auto at = [&](int exponent) {
    if (exponent < kLeastExponent || exponent > kMostExponent) return kNone;
    const auto [entry, fresh] = tried.try_emplace(exponent, kNone);
    if (fresh) entry->second = cover_by(order, {.lane_price = price_of(exponent)});
    return entry->second;
  };
  if (swap) at(exponent_);  // where copies cost nothing, nothing else is looked at
  for (const bool keep_inputs : {false, true}) cover_by(order, {.swap = false, .keep_inputs = keep_inputs});
  if (!swap) return;
  for (int step = first_ ? 2 : 1; step > 0; --step)
    while (true) {
      const std::int64_t here = at(exponent_), dearer = at(exponent_ + step), cheaper = at(exponent_ - step);
      if (std::min(dearer, cheaper) >= here) break;
      exponent_ += dearer <= cheaper ? step : -step;
    }
  first_ = false;
  cover_by(order, {.lane_price = lane_price(), .keep_inputs = true});
}

}  // namespace stowage::budget
