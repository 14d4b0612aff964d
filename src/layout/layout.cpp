// The layout of a set of intervals: family, then complete search under falling heights, then improvement.
//
//   bound ├────────────×───────?──────────○────────┤ height of the best of the family
//                      │       │          └ found: the height falls to here
//                      │       └ out of work: neither proven nor found
//                      └ proven empty: the bound rises to here
#include "stowage/layout.h"

#include <algorithm>
#include <array>

#include "layout/canonical_search.h"
#include "layout/instance.h"
#include "layout/portfolio.h"
#include "layout/preferences.h"
#include "layout/squeaky_wheel.h"

namespace stowage {
namespace {

constexpr std::array kPreferences = {Prefer::kTotalLifeArea, Prefer::kTotalAreaLife, Prefer::kLifeAreaTotal, Prefer::kAreaTotalLife,
                                     Prefer::kFreeTime};
constexpr std::size_t kLargestSearch = 6000;  // rects; neighbour lists are quadratic
constexpr std::int64_t kFamilyWork = 200'000'000;
constexpr std::size_t kLargestFamily = 300'000;  // rects; above, only the sweep

class LayoutSearch {
 public:
  LayoutSearch(const LayoutInstance& instance, const LayoutOptions& options)
      : instance_(instance),
        options_(options),
        bound_(instance.bound),
        target_(std::max(instance.bound, options.capacity.value_or(0))),
        work_(options.node_budget * 800) {}

  void run() {
    std::int64_t family_work = instance_.rects.size() > kLargestFamily ? 0 : kFamilyWork + work_ / 4;
    std::vector<Packing> family = portfolio(instance_, target_, family_work);
    best_ = family[0].offsets;
    if (instance_.rects.size() <= kLargestSearch) search();
    for (std::size_t k = 0; family_work > 0 && k < 3 && k < family.size() && !done(); ++k) improve(family[k], options_.seed + k);
  }

  [[nodiscard]] const Offsets& best() const { return best_; }
  [[nodiscard]] std::int64_t bound() const { return bound_; }

 private:
  [[nodiscard]] bool stopped() const { return options_.should_stop && options_.should_stop(); }
  [[nodiscard]] bool done() const { return best_.height <= std::max(target_, bound_) || stopped(); }

  // Most of the work at the target itself; then at heights between, nearer and nearer to what is known.
  void search() {
    std::int64_t untried = target_;
    std::int64_t share = work_ * 3 / 5;
    while (!done() && work_ > 0) {
      const SearchOutcome outcome = search_at(untried, share);
      if (outcome == SearchOutcome::kNone) bound_ = std::max(bound_, next_height(untried));
      if (outcome != SearchOutcome::kFound) failed_ = std::max(failed_, untried);
      share = work_ / 4;
      const std::int64_t low = std::max(failed_, bound_);
      untried = low + (best_.height - low) / 2;
      if (best_.height - low <= std::max(instance_.align, low / 2000)) break;
    }
  }

  // All preferences in turn with doubling shares of work; some later rounds with noise.
  SearchOutcome search_at(std::int64_t capacity, std::int64_t share) {
    std::int64_t slice = 2 * dive_work() + share / 512;
    for (int round = 0; share > 0; ++round, slice *= 2)
      for (const Prefer prefer : kPreferences) {
        std::int64_t left = std::min(slice, share);
        if (left <= 0 || stopped()) return SearchOutcome::kLimit;
        const std::int64_t given = left;
        const auto order = preference(instance_, prefer, round % 2 == 0 || round < 8 ? 0 : 0.2, options_.seed + static_cast<std::uint64_t>(round));
        SearchResult result = canonical_search(instance_, capacity, order, left, options_.should_stop);
        share -= given - left;
        work_ -= given - left;
        if (result.outcome == SearchOutcome::kFound && result.offsets.height < best_.height) best_ = std::move(result.offsets);
        if (result.outcome != SearchOutcome::kLimit) return result.outcome;
      }
    return SearchOutcome::kLimit;
  }

  // What a search without a step back looks at.
  [[nodiscard]] std::int64_t dive_work() const {
    std::int64_t once = 0;
    for (const Rect& r : instance_.rects) once += 6 + (r.upper - r.lower) / 4;
    return once * static_cast<std::int64_t>(instance_.rects.size()) / 2;
  }

  [[nodiscard]] std::int64_t next_height(std::int64_t height) const { return height / instance_.align * instance_.align + instance_.align; }

  void improve(const Packing& from, std::uint64_t seed) {
    const std::int64_t work = options_.node_budget * 75;
    Offsets now = squeaky_wheel(instance_, from.order, std::max(target_, bound_), work, seed, options_.should_stop);
    if (!now.at.empty() && now.height < best_.height) best_ = std::move(now);
  }

  const LayoutInstance& instance_;
  const LayoutOptions& options_;
  std::int64_t bound_, target_, work_;
  std::int64_t failed_ = 0;  // the largest height that a search gave up or proved empty
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
  }
  result.height_bytes = true_height(items, result.offsets);
  result.lower_bound_bytes = std::min(result.lower_bound_bytes, result.height_bytes);
  result.outcome = judge(result, options.capacity);
  if (result.outcome == Outcome::kInfeasible || result.outcome == Outcome::kUnknown) result.offsets.clear();
  return result;
}

}  // namespace stowage
