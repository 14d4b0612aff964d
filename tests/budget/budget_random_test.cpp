// Plans under a budget on random graphs, judged by the checker and by its slow twin.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "stowage/check.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/builder.h"
#include "support/naive_checker.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

struct Case {
  int ops;
  double link_gbps;  // the graphs have tens of bytes and hundreds of ns
  bool keep_order;
};

class BudgetOnRandomGraphs : public ::testing::TestWithParam<Case> {};

PlanResult plan_at(const Graph& graph, std::int64_t budget, const Case& c) {
  PlanOptions options;
  options.budget_bytes = budget;
  options.link_gbps = c.link_gbps;
  options.keep_order = c.keep_order;
  options.order_node_budget = options.layout_node_budget = 2'000;
  return plan(graph, options);
}

// Every limit from what is never possible to what costs nothing.
TEST_P(BudgetOnRandomGraphs, PlansAreValidFitAndNeverSlowDownAsTheBudgetGrows) {
  const Case c = GetParam();
  const int graphs = std::max(2, (c.link_gbps > 0 && c.link_gbps < 1 ? 40 : 160) / c.ops / (1 + c.ops / 20));
  int repeats = 0, swaps = 0, infeasible = 0;
  for (int i = 0; i < graphs; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", ops " + std::to_string(c.ops));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = c.ops;
    const Graph graph = random_graph(random, options);
    const std::int64_t resident = resident_bytes(graph), program = program_peak_bytes(graph);
    std::int64_t before = -1, at_smallest = -1;
    for (int k = 0; k <= 8; ++k) {
      const std::int64_t budget = resident + program * k / 8;
      const PlanResult result = plan_at(graph, budget, c);
      if (!result.plan) {
        ++infeasible;
        EXPECT_EQ(result.outcome, Outcome::kInfeasible);
        EXPECT_LT(budget, result.smallest_bytes);
        EXPECT_LE(result.budget_bound_bytes, result.smallest_bytes);
        EXPECT_EQ(before, -1) << "a smaller budget had a plan";
        const PlanResult smallest = plan_at(graph, result.smallest_bytes, c);
        ASSERT_TRUE(smallest.plan.has_value());
        EXPECT_LE(resident + smallest.plan->arena_bytes, result.smallest_bytes);
        at_smallest = smallest.step_ns;  // lies between two rungs, and what is met above it is no slower
        continue;
      }
      const CheckReport report = check(graph, *result.plan);
      EXPECT_TRUE(report.valid) << report.message;
      EXPECT_EQ(naive_peak(graph, *result.plan), report.peak_bytes);
      EXPECT_LE(resident + result.plan->arena_bytes, budget);
      EXPECT_GE(budget, result.budget_bound_bytes);
      EXPECT_LE(*result.step_bound_ns, result.step_ns);
      EXPECT_GE(result.step_ns, result.program_step_ns + result.recompute_ns);
      if (before >= 0) {
        EXPECT_LE(result.step_ns, before);
      }
      if (at_smallest >= 0) {
        EXPECT_LE(result.step_ns, at_smallest);
      }
      before = result.step_ns;
      repeats += result.recomputed_ops > 0;
      swaps += result.swapped_bytes > 0;
      EXPECT_EQ(to_json(*result.plan), to_json(*plan_at(graph, budget, c).plan));
    }
  }
  if (c.link_gbps > 1) {
    EXPECT_GT(repeats + swaps, 0);
  }
  RecordProperty("repeats", repeats);
  RecordProperty("swaps", swaps);
  RecordProperty("infeasible", infeasible);
}

// A slow link makes a step wait, but takes no more bytes: whatever may wait on the host can, and so the smallest budget
// comes close to what one op needs.
TEST(BudgetSwap, ASlowLinkLowersTheSmallestBudgetAsAFastOneDoes) {
  double over_bound = 0, over_fast = 0;
  constexpr int kGraphs = 12;
  for (int i = 0; i < kGraphs; ++i) {
    std::mt19937_64 random(first_seed() * 1000 + static_cast<std::uint64_t>(i));
    RandomGraphOptions options;
    options.ops = 20 + i % 2 * 20;
    const Graph graph = random_graph(random, options);
    const PlanResult slow = plan_at(graph, 0, {options.ops, 1e-5, false});
    const PlanResult fast = plan_at(graph, 0, {options.ops, 1e5, false});
    over_bound += static_cast<double>(slow.smallest_bytes) / static_cast<double>(slow.budget_bound_bytes) / kGraphs;
    over_fast += static_cast<double>(slow.smallest_bytes) / static_cast<double>(fast.smallest_bytes) / kGraphs;
  }
  EXPECT_LE(over_bound, 1.12);
  EXPECT_LE(over_fast, 1.01);
}

// Costs, sizes and links at the ends of what files may hold: no sum overflows, and plans are as valid as any.
TEST(BudgetExtremes, SumsStayWithinTheirType) {
  const double kLinks[] = {0, 1e-300, 1e-9, 1e-3, 1e6, 1e300};
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions shape;
    shape.ops = 3 + i % 9;
    shape.most_bytes = i % 2 == 0 ? 40 : std::int64_t{1} << 46;
    shape.most_cost_ns = i % 3 == 0 ? 0 : std::int64_t{1} << 48;
    const Graph graph = random_graph(random, shape);
    for (const double link : kLinks) {
      PlanOptions options;
      options.link_gbps = link;
      options.order_node_budget = options.layout_node_budget = 500;
      options.budget_bytes = 0;
      const PlanResult none = plan(graph, options);
      options.budget_bytes = std::max(none.smallest_bytes, none.resident_bytes);
      const PlanResult result = plan(graph, options);
      ASSERT_TRUE(result.plan.has_value());
      EXPECT_TRUE(check(graph, *result.plan).valid);
      EXPECT_GE(result.step_ns, result.program_step_ns);
      EXPECT_GE(result.gap, 0);
    }
  }
}

// A buffer waits on the host until the end of the step: no op is left before which it could come back.
TEST(BudgetSwap, WhatIsReturnedMayComeBackAfterTheLastOp) {
  GraphBuilder g(3);
  const int a = g.buffer(5142), b = g.returned(63), c = g.buffer(2617), d = g.buffer(4096), e = g.buffer(9655);
  g.op({}, {}, {a}).cost_ns = 13184;
  g.op({a}, {}, {b, c});
  g.op({}, {a}, {d}).cost_ns = 877883;
  g.op({c}, {}, {e});
  const Graph graph = g.build();
  PlanOptions options;
  options.link_gbps = 1e6;
  options.budget_bytes = 1;
  options.budget_bytes = plan(graph, options).smallest_bytes;
  const PlanResult result = plan(graph, options);
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_EQ(naive_peak(graph, *result.plan), result.peak_bytes);
}

// An op with several writes leaves a version of each.
TEST(BudgetInPlace, AnOpMayWriteSeveralBuffers) {
  GraphBuilder g;
  const int a = g.buffer(100), b = g.buffer(100), big = g.buffer(1000), last = g.returned(8);
  g.op({}, {}, {a, b}).cost_ns = 10;
  g.op({}, {a, b}, {big}).cost_ns = 10;
  g.op({big}, {a}, {}).cost_ns = 10;
  g.op({a, b}, {}, {last}).cost_ns = 10;
  const Graph graph = g.build();
  for (const double link : {0.0, 1000.0}) {
    PlanOptions options;
    options.link_gbps = link;
    for (options.budget_bytes = 0; *options.budget_bytes <= 1300; *options.budget_bytes += 50) {
      const PlanResult result = plan(graph, options);
      if (result.plan) {
        EXPECT_EQ(naive_peak(graph, *result.plan), result.peak_bytes);
      }
    }
  }
}

// Proven the fastest within the budget, and below what plans without recomputation need: nothing is left to gain.
TEST(BudgetGap, IsNotNegative) {
  GraphBuilder g;
  const int a = g.buffer(1000), b = g.buffer(10), big = g.buffer(1500), c = g.buffer(10), d = g.returned(10);
  g.op({}, {}, {a}).cost_ns = 0;  // costs nothing to have again
  g.op({a}, {}, {b}).cost_ns = 100;
  g.op({b}, {}, {big}).cost_ns = 100;
  g.op({big}, {}, {c}).cost_ns = 100;
  g.op({a, c}, {}, {d}).cost_ns = 100;
  const Graph graph = g.build();
  PlanOptions options;
  options.link_gbps = 0;
  bool squeezed = false;
  for (std::int64_t budget = 1000; budget <= 4000; budget += 10) {
    options.budget_bytes = budget;
    const PlanResult result = plan(graph, options);
    if (!result.plan) continue;
    squeezed |= result.peak_bytes < result.lower_bound_bytes && result.outcome == Outcome::kOptimal;
    EXPECT_GE(result.gap, 0) << budget;
    const bool proven = result.peak_bytes <= result.lower_bound_bytes && result.step_ns == result.step_bound_ns;
    EXPECT_EQ(result.outcome, proven ? Outcome::kOptimal : Outcome::kFeasible) << budget;
  }
  EXPECT_TRUE(squeezed);
}

// Of the op's pair [r, c], c lies over the copy of r that ends there, whether or not r is made again later.
TEST(BudgetReuse, ACopyThatIsMadeAgainLaterIsReused) {
  GraphBuilder g;
  const int a = g.buffer(1000), b = g.buffer(1000), c = g.buffer(8), d = g.returned(8);
  g.op({}, {}, {a});
  g.op({a}, {}, {b}).takeover = {{BufferId(a), BufferId(b)}};
  g.op({b}, {}, {c});
  g.op({a, c}, {}, {d});
  const Graph graph = g.build();
  PlanOptions options;
  options.link_gbps = 0;
  options.budget_bytes = 0;
  const std::int64_t smallest = plan(graph, options).smallest_bytes;
  options.takeover = false;
  EXPECT_GE(plan(graph, options).smallest_bytes, 2000);
  EXPECT_EQ(smallest, 1016);
  options.takeover = true;
  options.budget_bytes = smallest;
  const PlanResult result = plan(graph, options);
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_EQ(result.recomputed_ops, 1);
  EXPECT_EQ(naive_peak(graph, *result.plan), 1016);
}

// The two searches look at different limits, so one can end a step of its ladder above the other.
TEST(BudgetReuse, AsksForLess) {
  std::int64_t less = 0, more = 0, all_with = 0, all_without = 0;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions shape;
    shape.ops = 4 + i % 12;
    const Graph graph = random_graph(random, shape);
    PlanOptions options;
    options.budget_bytes = 0;
    options.link_gbps = i % 2 == 0 ? 0 : 1000;
    options.order_node_budget = options.layout_node_budget = 2'000;
    const PlanResult with = plan(graph, options);
    options.takeover = false;
    const PlanResult without = plan(graph, options);
    if (with.plan || without.plan) continue;  // nothing is needed
    all_with += with.smallest_bytes - with.resident_bytes;
    all_without += without.smallest_bytes - without.resident_bytes;
    less += with.smallest_bytes < without.smallest_bytes;
    more += with.smallest_bytes > without.smallest_bytes;
  }
  EXPECT_GT(less, more);
  EXPECT_LT(all_with, all_without);
}

INSTANTIATE_TEST_SUITE_P(Cases, BudgetOnRandomGraphs,
                         ::testing::Values(Case{3, 0, false}, Case{8, 0, false}, Case{8, 0.001, false},
                                           Case{8, 1000, false}, Case{20, 0, false}, Case{20, 0, true},
                                           Case{20, 0.001, true}, Case{40, 0, false}, Case{40, 0.01, false}));

}  // namespace
}  // namespace stowage::testing
