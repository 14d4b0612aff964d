// The road of a sharding: clusters and prices, then two stages.
//
//   space ──▶ stage 1: fewest counted bytes ──▶ stage 2: least time, bytes <= (1 + eps) * fewest ──▶ strategies ──▶ ledger
//             every home by itself is a bound;
//             that stage 2 meets it proves it
//
// Redistribution lets any op run whatever the placements around it, so homes rarely bind each other: the sum of each
// home's least is nearly always reached, and then stage 1 needs no search.
//
// A limit on the peak is met by rows for the ops where plans passed it (peak_limit.h). Three axes and more make stage 2
// too large to end in a minute: it is then also searched in small (search_in_small.h). On fewer axes a stage 2 that is
// cut short is followed by one among the plans of the fewest bytes, which ends much sooner. The faster plan is shown.
//
// Where collectives run beside kernels, all this is done at several prices of kernels and links (link_prices.h).
//
// With overlap, and on three axes and more under a limit of time, a search climbs: first among plans of the fewest bytes,
// which are found soonest, then with more room, from the best so far.
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/concat.h"
#include "sharding/link_prices.h"
#include "sharding/peak_limit.h"
#include "sharding/search.h"
#include "sharding/search_in_small.h"
#include "stowage/error.h"

namespace stowage {
namespace {

constexpr std::size_t kManyAxes = 3;
constexpr double kShareForAll = 0.7;  // of the time that is left: for the search among all plans within the budget

bool has_many_axes(const Search& search) { return search.space().mesh.axes.size() >= kManyAxes; }

bool has_limit(const Search& search, double budget) {
  return !std::isinf(budget) || search.options().memory_limit_bytes;
}

// Among all plans within the budget, then among those of the fewest bytes.
Found search_twice(Search& search, double budget) {
  Found found = search.run(budget, search.is_wider(budget) ? kShareForAll * search.left() : search.left());
  if (!search.is_wider(budget) || is_settled(found)) return found;
  return search.better(std::move(found), search.run(search.fewest(), search.left()));
}

// Both goals in one number: how much more than the fewest bytes there may be.
double eps_of(const ShardingOptions& options) {
  return options.goal == ShardingGoal::kLeastTime ? kInfinity : options.eps;
}

Found find_plan(Search& search, double eps) {
  search.find_fewest();
  const ShardingOptions& options = search.options();
  const double budget = search.budget(eps);
  if (options.memory_limit_bytes && least_state(search.space()) > *options.memory_limit_bytes)
    return search.nothing(Outcome::kInfeasible);
  if (!has_many_axes(search) || (!search.is_wider(budget) && !options.memory_limit_bytes))
    return within_limit(search, budget, [&](double bytes) { return search_twice(search, bytes); });
  // Under a limit the large search would leave no seconds for the small ones; without one it is the easiest of all, but
  // from a plan that is known the small ones come further
  const bool timed = options.time_limit_seconds > 0;
  const bool small_first = timed && (has_limit(search, budget) || !search.known().homes.empty());
  Found small = search.nothing(Outcome::kUnknown);
  if (small_first) small = search_in_small(search, eps, find_plan);
  const double share = timed && !small_first ? kShareForAll : 1;
  Found all = within_limit(search, budget, [&](double bytes) { return search.run(bytes, share * search.left()); });
  if (small.plan.ops.empty() && !is_settled(all)) small = search_in_small(search, eps, find_plan);
  return search.better(std::move(all), std::move(small));
}

// A stage before the last: eps, and which part of the time that is left it may take.
struct Stage {
  double eps, share;
};
// On many axes there is time for one search, at the prices of a plain sum.
constexpr Stage kOnManyAxes[] = {{0, 0.6}}, kOnFewAxes[] = {{0, 0.25}, {0.1, 0.3}};

// `find` has so many seconds; 0: no end.
Found climb(Search& search, const std::function<Found(double eps, double seconds)>& find) {
  const double last = eps_of(search.options()), seconds = search.options().time_limit_seconds;
  const auto left = [&] { return seconds > 0 ? std::max(0.1, seconds - search.seconds_of_all()) : 0; };
  Found best = search.nothing(Outcome::kUnknown);
  for (const Stage& stage : has_many_axes(search) ? std::span<const Stage>(kOnManyAxes) : kOnFewAxes) {
    if (stage.eps >= last) break;
    best = search.better(find(stage.eps, stage.share * left()), std::move(best));
    if (!best.choice.homes.empty()) search.remember(best.choice, stage.eps);
  }
  return search.better(find(last, left()), std::move(best));
}

// A search by itself is cut short: on many axes, under limits.
bool is_cut_short(Search& search) {
  search.find_fewest();
  const ShardingOptions& options = search.options();
  return options.time_limit_seconds > 0 && has_many_axes(search) && has_limit(search, search.budget(eps_of(options)));
}

// At the prices of a plain sum.
Found find_plain(Search& search, double eps, double seconds) {
  search.begin(seconds, {});
  return find_plan(search, eps);
}

Found without_overlap(Search& search) {
  if (!is_cut_short(search)) return find_plan(search, eps_of(search.options()));
  return climb(search, [&](double eps, double seconds) { return find_plain(search, eps, seconds); });
}

Found with_overlap(Search& search) {
  return climb(search, [&](double eps, double seconds) {
    const bool sketches = seconds > 0 && has_many_axes(search) && eps < eps_of(search.options());
    return sketches ? find_plain(search, eps, seconds) : find_overlapped(search, eps, seconds, find_plan);
  });
}

// Beyond these the times of one plan differ by so much that no solver can compare them in doubles.
constexpr double kLeastRate = 1e-6, kMostRate = 1e9, kMostNs = 1e12;

void require_comparable(const Mesh& mesh) {
  const auto rate = [](const std::string& what, double value) {
    if (!(value >= kLeastRate && value <= kMostRate))
      throw Error(concat("mesh: ", what, " must lie between 1e-6 and 1e9"));
  };
  const auto time = [](const std::string& what, double value) {
    if (!(value >= 0 && value <= kMostNs)) throw Error(concat("mesh: ", what, " must lie between 0 and 1e12"));
  };
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    rate(concat("axis ", i, ": gbps"), mesh.axes[i].gbps);
    time(concat("axis ", i, ": latency_ns"), mesh.axes[i].latency_ns);
  }
  rate("tflops", mesh.tflops);
  rate("memory_gbps", mesh.memory_gbps);
  time("kernel_ns", mesh.kernel_ns);
}

}  // namespace

ShardingPlan plan_sharding(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options) {
  if (program.ops.empty()) throw Error("a program to shard has no ops");
  require_comparable(mesh);
  Search search(program, mesh, options);
  return (options.overlap ? with_overlap(search) : without_overlap(search)).plan;
}

}  // namespace stowage
