// The two ILPs of the leaves against brute force and against our own exact search.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "graph/ordered_graph.h"
#include "order/search.h"
#include "roam/layout_ilp.h"
#include "roam/order_ilp.h"
#include "roam/spans.h"
#include "support/every_order.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

using namespace stowage::roam;

Graph small_graph(std::uint64_t seed, int ops) {
  std::mt19937_64 random(seed);
  RandomGraphOptions options;
  options.ops = ops;
  return random_graph(random, options);
}

OrderProblem whole(const Graph& graph) { return order_problem(AnalysedGraph(graph)); }

Schedule serial(const OrderProblem& p) {
  Schedule s(p.ops);
  std::iota(s.begin(), s.end(), 0);
  return s;
}

IlpLimits patient() {
  IlpLimits limits;
  limits.nodes = 1'000'000;
  limits.iterations = 0;
  return limits;
}

TEST(OrderIlp, EqualsEveryPermutation) {
  for (int i = 0; i < 120; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = small_graph(seed, 1 + i % 6);
    const OrderProblem p = whole(graph);
    const OrderIlpResult r = order_ilp({{p}}, {{serial(p)}}, Streams::kSingle, patient());
    EXPECT_EQ(r.outcome, Outcome::kOptimal);
    EXPECT_EQ(r.peak, least_peak(graph).plain);
    EXPECT_EQ(r.bound, r.peak);
  }
}

TEST(OrderIlp, EqualsOurExactSearch) {
  const int graphs = cases(32, 80);
  int improved = 0;
  for (int i = 0; i < graphs; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + 500 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = small_graph(seed, 7 + i % 4);
    const OrderProblem p = whole(graph);
    const OrderIlpResult r = order_ilp({{p}}, {{serial(p)}}, Streams::kSingle, patient());
    OrderOptions options;
    options.in_place_reuse = false;
    const AnalysedGraph analysed(graph);
    const OrderResult ours = find_order(OrderModel(analysed), options);
    ASSERT_EQ(r.outcome, Outcome::kOptimal);
    EXPECT_EQ(r.peak, ours.peak_bytes);
    EXPECT_LE(ours.bound_bytes, r.peak);
    improved += r.peak < peak_bytes(graph, program_order(graph));
  }
  EXPECT_GT(improved, graphs / 8);
}

// The least peak when ops may share steps, by trying every schedule of the given number of steps.
std::int64_t least_shared(const OrderProblem& p, std::int32_t steps) {
  Schedule s(p.ops, 0);
  std::int64_t least = schedule_peak(p, spans(p, Streams::kMulti, 1.0).asap);
  for (bool more = true; more;) {
    bool valid = true;
    for (std::int32_t op = 0; op < p.ops; ++op)
      for (const std::int32_t before : p.preds[op]) valid &= s[before] < s[op];
    if (valid) least = std::min(least, schedule_peak(p, s));
    more = false;
    for (std::int32_t op = 0; op < p.ops && !more; ++op) {
      more = s[op] + 1 < steps;
      s[op] = more ? s[op] + 1 : 0;
    }
  }
  return least;
}

TEST(OrderIlp, SharedStepsEqualEverySchedule) {
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const OrderProblem p = whole(small_graph(seed, 6));
    const Spans levels = spans(p, Streams::kMulti, 1.0);
    const OrderIlpResult r = order_ilp({{p}}, {{levels.alap}}, Streams::kMulti, patient());
    EXPECT_EQ(r.outcome, Outcome::kOptimal);
    EXPECT_EQ(r.peak, least_shared(p, levels.steps));
  }
}

TEST(OrderIlp, TwoWindowsShareTheirPeak) {
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const OrderProblem a = whole(small_graph(seed, 6)), b = whole(small_graph(seed + 400, 6));
    const auto alone = [](const OrderProblem& p) {
      return order_ilp({{p}}, {{serial(p)}}, Streams::kSingle, patient()).peak;
    };
    const std::vector<OrderProblem> both = {a, b};
    const std::vector<Schedule> starts = {serial(a), serial(b)};
    EXPECT_EQ(order_ilp(both, starts, Streams::kSingle, patient()).peak, std::max(alone(a), alone(b)));
  }
}

TEST(OrderIlp, ATooLargeProgramKeepsTheStart) {
  const OrderProblem p = whole(small_graph(first_seed(), 12));
  IlpLimits limits;
  limits.entries = 3;
  const OrderIlpResult r = order_ilp({{p}}, {{serial(p)}}, Streams::kSingle, limits);
  EXPECT_EQ(r.outcome, Outcome::kUnknown);
  EXPECT_EQ(r.schedules[0], serial(p));
  EXPECT_EQ(r.peak, schedule_peak(p, serial(p)));
}

Floored random_rects(std::mt19937_64& random, int count, bool floors) {
  Floored result;
  for (int i = 0; i < count; ++i) {
    const auto lower = static_cast<std::int32_t>(draw(random, 0, 7));
    result.rects.push_back({lower, static_cast<std::int32_t>(draw(random, lower + 1, 8)), 8 * draw(random, 1, 12)});
    result.floor.push_back(floors && chance(random, 40) ? 8 * draw(random, 1, 10) : 0);
  }
  return result;
}

// The least height: some order of lowest fits above all placed neighbours gives it.
std::int64_t least_height(const Floored& problem) {
  std::vector<std::int32_t> order(problem.rects.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  do {
    std::vector<std::int64_t> at(problem.floor);
    std::int64_t height = 0;
    for (std::size_t k = 0; k < order.size(); ++k) {
      for (std::size_t q = 0; q < k; ++q)
        if (meet(problem.rects[order[k]], problem.rects[order[q]]))
          at[order[k]] = std::max(at[order[k]], at[order[q]] + problem.rects[order[q]].bytes);
      height = std::max(height, at[order[k]] + problem.rects[order[k]].bytes);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

void expect_valid(const Floored& problem, const Offsets& offsets) {
  for (std::size_t i = 0; i < problem.rects.size(); ++i) {
    EXPECT_GE(offsets.at[i], problem.floor[i]);
    EXPECT_EQ(offsets.at[i] % 8, 0);
    EXPECT_LE(offsets.at[i] + problem.rects[i].bytes, offsets.height);
    for (std::size_t j = 0; j < i; ++j)
      if (meet(problem.rects[i], problem.rects[j])) {
        EXPECT_TRUE(offsets.at[i] + problem.rects[i].bytes <= offsets.at[j] ||
                    offsets.at[j] + problem.rects[j].bytes <= offsets.at[i]);
      }
  }
}

TEST(LayoutIlp, EqualsBruteForceWithAndWithoutFloors) {
  int solved = 0;
  for (int i = 0; i < 150; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Floored problem = random_rects(random, 7, i % 2 == 0);
    const LayoutIlpResult r = layout_ilp(problem, 100, patient());
    expect_valid(problem, r.offsets);
    EXPECT_EQ(r.outcome, Outcome::kOptimal);
    const std::int64_t least = least_height(problem);
    EXPECT_EQ(r.offsets.height, least);
    EXPECT_LE(height_bound(problem), least);
    EXPECT_LE(r.bound, least);
    solved += r.solver_used;
  }
  EXPECT_GT(solved, 5);
}

TEST(LayoutIlp, EqualsOurCompleteSearch) {
  int solved = 0;
  for (int i = 0; i < 150; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Floored problem = random_rects(random, 10, false);
    std::vector<LayoutItem> items;
    for (const Rect& r : problem.rects) items.push_back({r.lower, r.upper, r.bytes});
    LayoutOptions options;
    options.align = 8;
    const LayoutIlpResult r = layout_ilp(problem, 100, patient());
    ASSERT_EQ(r.outcome, Outcome::kOptimal);
    expect_valid(problem, r.offsets);
    EXPECT_EQ(layout(items, options).height_bytes, r.offsets.height);
    solved += r.solver_used;
  }
  EXPECT_GT(solved, 5);
}

}  // namespace
}  // namespace stowage::testing
