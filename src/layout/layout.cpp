// The layout of a set of intervals: family, windows, plain greedies, guided ejection, then complete search in rounds, then
// improvement. Of many rects: the replayed allocator, some greedies, windows, guided ejection, the other greedies.
//
//   bound ├──×──────────────?───────○──────○─────○──┤ height of the best of the family
//            │              │       └──────┴─────┴ found: the height falls to here, and the next step down is longer
//            │              └ out of work for this round: a shorter step next
//            └ proven empty: the bound rises to here
#include "stowage/layout.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "layout/canonical_search.h"
#include "layout/core_window.h"
#include "layout/greedy_family.h"
#include "layout/guided_ejection.h"
#include "layout/instance.h"
#include "layout/narrowing_fit.h"
#include "layout/portfolio.h"
#include "layout/preferences.h"
#include "layout/sections.h"
#include "layout/squeaky_wheel.h"
#include "layout/sweep_fit.h"

namespace stowage {
namespace {

constexpr std::array kPreferences = {Prefer::kTotalLifeArea, Prefer::kTotalAreaLife, Prefer::kLifeAreaTotal,
                                     Prefer::kAreaTotalLife, Prefer::kFreeTime};
constexpr std::size_t kLargestSearch = 6000;  // rects; neighbour lists are quadratic
constexpr std::int64_t kNodeWork = 800;
constexpr std::int64_t kDives = 20;             // down and back, before a search is worth its beginning
constexpr std::size_t kLarge = 5000;            // rects; above, all of the family are by free_gaps.h
constexpr std::size_t kEjectionSize = 100'000;  // rects; more of them get more work
constexpr std::int64_t kAll = 60'000'000'000;   // work for all plain greedies, up to some hundred thousand rects
constexpr std::size_t kLeastEjection = 600;     // rects; below, complete search makes more of the work

class LayoutSearch {
 public:
  LayoutSearch(const LayoutInstance& instance, const LayoutOptions& options, int depth = 0)
      : instance_(instance),
        options_(options),
        depth_(depth),
        bound_(instance.bound),
        target_(std::max(instance.bound, options.capacity.value_or(0))),
        work_(options.node_budget * kNodeWork) {
    for (const Rect& r : instance.rects) unit_ = std::gcd(unit_, r.bytes);
    for (const Prefer prefer : kPreferences) orders_.push_back(preference(instance, prefer));
  }

  void run() { instance_.rects.size() > kLarge ? run_large() : run_small(); }

  [[nodiscard]] const Offsets& best() const { return best_; }
  [[nodiscard]] std::int64_t bound() const { return bound_; }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  [[nodiscard]] bool stopped() const { return options_.should_stop && options_.should_stop(); }
  [[nodiscard]] std::int64_t low() const { return std::max(target_, bound_); }
  [[nodiscard]] bool done() const { return best_.height <= low() || stopped(); }

  void run_small() {
    std::int64_t family_work = options_.family_work + work_ / 4;
    used_ = family_work;
    std::vector<Packing> family = portfolio(instance_, target_, family_work);
    best_ = family[0].offsets;
    if (family_work > 0 && depth_ == 0 && !done()) add_windows(family, family_work);
    used_ -= family_work;
    if (depth_ == 0 && options_.all_greedies && !done()) {
      std::int64_t greedy_work = kAll;
      add_greedies(Greedies::kAll, greedy_work);
    }
    if (depth_ == 0 && instance_.rects.size() > kLeastEjection && work_ > 0 && !done()) {
      const std::int64_t share = work_ / 4;
      work_ -= share;
      eject(share);
    }
    const bool searched = may_dive();
    if (searched) search();
    const std::int64_t wheel_work =
        searched ? options_.node_budget * 30 : work_ / static_cast<std::int64_t>(kBestPackings);
    for (std::size_t k = 0; (searched || depth_ == 0) && k < family.size() && k < kBestPackings && !done(); ++k)
      improve(family[k], options_.seed + k, wheel_work);
  }

  // The first greedies show where to begin; what ejection reaches cuts the others off early.
  void run_large() {
    best_ = sweep_fit(instance_);
    std::int64_t all_work = kAll, family_work = options_.family_work + work_ / 4;
    std::int64_t& greedy_work = options_.all_greedies && depth_ == 0 ? all_work : family_work;
    if (!done()) add_greedies(Greedies::kFirst, greedy_work);
    if (depth_ > 0 || done()) return;
    std::vector<Packing> family(1);
    family[0].offsets = best_;
    used_ += family_work;
    add_windows(family, family_work);
    used_ -= family_work;
    const auto size = static_cast<std::int64_t>(std::clamp(instance_.rects.size(), kEjectionSize, 2 * kEjectionSize));
    const std::int64_t ejection_work = 3 * work_ / 8 * size / static_cast<std::int64_t>(kEjectionSize);
    if (ejection_work > 0 && !done()) eject(2 * ejection_work);
    if (!done()) add_greedies(Greedies::kOthers, greedy_work);
    if (ejection_work > 0 && !done()) eject(ejection_work);
  }

  void add_greedies(Greedies which, std::int64_t& work) {
    used_ += work;
    best_ = greedy_family(instance_, which, std::move(best_), low(), work, options_.threads, options_.should_stop);
    used_ -= work;
  }

  void eject(std::int64_t work) {
    used_ += work;
    best_ =
        guided_ejection(by_sections(instance_), std::move(best_), low(), work, options_.threads, options_.should_stop);
    used_ -= work;
  }

  void add_windows(std::vector<Packing>& family, std::int64_t& family_work) {
    LayoutOptions within = options_;
    std::int64_t pool = 2 * work_;  // for windows of a few hundred rects; of larger ones the family is enough
    const auto search = [&](const LayoutInstance& window, std::int64_t target) {
      within.capacity = target;
      within.node_budget = std::clamp<std::int64_t>(pool / kNodeWork, 0, options_.node_budget);
      LayoutSearch inner(window, within, depth_ + 1);
      inner.run();
      used_ += inner.used();
      pool -= inner.used();
      return inner.best();
    };
    const std::int64_t ceiling = instance_.rects.size() > kLarge ? best_.height : ceiling_of(family);
    for (Packing& packing : core_window(instance_, target_, search, ceiling, family_work))
      family.push_back(std::move(packing));
    std::stable_sort(family.begin(), family.end(),
                     [](const Packing& a, const Packing& b) { return a.offsets.height < b.offsets.height; });
    best_ = family[0].offsets;
  }

  // Rounds of growing slices, each at the target itself and then down from the best height: what finds nothing soon
  // finds nothing for long, but which height and preference that is shows only in trying.
  void search() {
    for (std::int64_t slice = 2 * dive_work() + work_ / 2000; work_ > 0 && !done(); slice *= 3) {
      try_height(low(), slice);
      descend(slice);
    }
  }

  // Steps down from the best height; a step is doubled by a success and halved by a failure.
  void descend(std::int64_t slice) {
    const std::int64_t least = std::max(unit_, best_.height / 2000);
    for (std::int64_t step = (best_.height - low()) / 2; step >= least && work_ > 0 && !done();) {
      const bool found = try_height(best_.height - step, slice);
      step = found ? std::min(2 * step, (best_.height - low()) / 2) : step / 2;
    }
  }

  // All preferences in turn, first the one that found the best so far.
  bool try_height(std::int64_t capacity, std::int64_t slice) {
    for (std::size_t k = 0; k < orders_.size() && work_ > 0 && !stopped(); ++k) {
      const std::int64_t given = std::min(slice, work_);
      std::int64_t left = given;
      SearchResult result = canonical_search(instance_, capacity, orders_[k], left, options_.should_stop);
      work_ -= given - left;
      used_ += given - left;
      if (result.outcome == SearchOutcome::kNone) bound_ = std::max(bound_, next_height(capacity));
      if (result.outcome == SearchOutcome::kFound) {
        best_ = std::move(result.offsets);
        std::rotate(orders_.begin(), orders_.begin() + static_cast<std::ptrdiff_t>(k),
                    orders_.begin() + static_cast<std::ptrdiff_t>(k) + 1);
      }
      if (result.outcome != SearchOutcome::kLimit) return result.outcome == SearchOutcome::kFound;
    }
    return false;
  }

  // Whether the work is enough for a search that goes down and back some times; else the wheel makes more of it.
  [[nodiscard]] bool may_dive() const {
    return instance_.rects.size() <= kLargestSearch && kDives * dive_work() <= work_;
  }

  // What a search without a step back looks at.
  [[nodiscard]] std::int64_t dive_work() const {
    std::int64_t once = 0;
    for (const Rect& r : instance_.rects) once += 6 + (r.upper - r.lower) / 4;
    return once * static_cast<std::int64_t>(instance_.rects.size()) / 2;
  }

  [[nodiscard]] std::int64_t next_height(std::int64_t height) const { return height / unit_ * unit_ + unit_; }

  void improve(const Packing& from, std::uint64_t seed, std::int64_t work) {
    used_ += work;
    Offsets now = squeaky_wheel(instance_, from.order, low(), work, seed, options_.should_stop);
    used_ -= work;
    if (!now.at.empty() && now.height < best_.height) best_ = std::move(now);
  }

  const LayoutInstance& instance_;
  const LayoutOptions& options_;
  int depth_;  // windows that this search is within
  std::int64_t bound_, target_, work_, used_ = 0;
  std::int64_t unit_ = 0;  // the greatest common divisor of all sizes
  std::vector<std::vector<std::int32_t>> orders_;
  Offsets best_;
};

// Padding counts between items, not above the topmost.
std::int64_t true_height(const std::vector<LayoutItem>& items, const std::vector<std::int64_t>& offsets) {
  std::int64_t height = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].bytes > 0 && items[i].upper > items[i].lower) height = std::max(height, offsets[i] + items[i].bytes);
  return height;
}

Outcome judge(const LayoutResult& result, const std::optional<std::int64_t>& capacity) {
  if (capacity && result.lower_bound_bytes > *capacity) return Outcome::kInfeasible;
  if (result.height_bytes == result.lower_bound_bytes) return Outcome::kOptimal;
  if (capacity && result.height_bytes > *capacity) return Outcome::kUnknown;
  return Outcome::kFeasible;
}

// What narrow items leave. The bound is that of all layouts.
void use_what_is_left(const std::vector<LayoutItem>& items, const LayoutOptions& options, LayoutResult& result) {
  constexpr std::int64_t kPairs = 50;  // for a node of the complete search
  result.lower_bound_bytes = std::min(result.lower_bound_bytes, narrowing_bound(items, options.align));
  const std::int64_t height = true_height(items, result.offsets);
  if (height <= std::max(result.lower_bound_bytes, options.capacity.value_or(0))) return;
  std::int64_t work = options.family_work + options.node_budget * kPairs;
  const std::int64_t given = work;
  std::vector<std::int64_t> offsets = narrowing_fit(items, options.align, height, work, options.should_stop);
  result.work += given - work;
  if (!offsets.empty()) result.offsets = std::move(offsets);
}

}  // namespace

LayoutResult layout(const std::vector<LayoutItem>& items, const LayoutOptions& options) {
  const LayoutInstance instance = make_instance(items, options.align);
  LayoutResult result;
  result.offsets.assign(items.size(), 0);
  if (!instance.rects.empty()) {
    LayoutSearch search(instance, options);
    search.run();
    for (std::size_t r = 0; r < instance.rects.size(); ++r) result.offsets[instance.item[r]] = search.best().at[r];
    // A layout of the items lower by less than the alignment could have been padded to one of the rects.
    result.lower_bound_bytes = search.bound() - instance.slack;
    result.work = search.used();
  }
  if (std::any_of(items.begin(), items.end(), narrows)) use_what_is_left(items, options, result);
  result.height_bytes = true_height(items, result.offsets);
  result.lower_bound_bytes = std::min(result.lower_bound_bytes, result.height_bytes);
  result.outcome = judge(result, options.capacity);
  if (result.outcome == Outcome::kInfeasible || result.outcome == Outcome::kUnknown) result.offsets.clear();
  return result;
}

}  // namespace stowage
