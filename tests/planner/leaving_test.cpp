// Residents that leave: plans below the residents' own bytes, judged by both checkers; who need not leave, stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "budget/lanes.h"
#include "planner/away_graph.h"
#include "planner/leaving_bounds.h"
#include "stowage/check.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/builder.h"
#include "support/every_order.h"
#include "support/naive_checker.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

PlanOptions options_of(std::int64_t budget) {
  PlanOptions options;
  options.budget_bytes = budget;
  options.link_gbps = 0.5;  // the graphs have tens of bytes and hundreds of ns
  options.least_leaving_bytes = 1;
  options.order_node_budget = options.layout_node_budget = 2'000;
  return options;
}

Graph leaving_graph(std::mt19937_64& random, int ops, bool ordering = true) {
  RandomGraphOptions shape;
  shape.ops = ops;
  shape.residents = static_cast<int>(draw(random, 2, chance(random, 50) ? 4 : 14));
  shape.leaving = 75;
  shape.ordering = ordering;
  Graph graph = random_graph(random, shape);
  for (std::size_t b = 0; b < graph.buffers.size(); ++b) {
    const auto uses = [&](const Op& op) {
      return std::ranges::count(op.reads, BufferId(b)) + std::ranges::count(op.writes, BufferId(b)) > 0;
    };
    graph.buffers[b].leaves = graph.buffers[b].leaves && std::ranges::any_of(graph.ops, uses);
  }
  seal(graph);
  return graph;
}

Graph staying(Graph graph) {
  for (Buffer& buffer : graph.buffers) buffer.leaves = false;
  seal(graph);
  return graph;
}

void expect_good(const Graph& graph, const PlanResult& result, std::int64_t budget) {
  const CheckReport report = check(graph, *result.plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(naive_peak(graph, *result.plan), report.peak_bytes);
  EXPECT_EQ(result.peak_bytes, report.peak_bytes);
  EXPECT_LE(result.resident_bytes + result.plan->arena_bytes, budget);
  EXPECT_EQ(result.resident_bytes + result.away_bytes, resident_bytes(graph));
  EXPECT_GE(budget, result.budget_bound_bytes);
  EXPECT_GE(result.step_ns, *result.step_bound_ns);
}

TEST(Leaving, PlansAreValidAndFitBelowTheResidents) {
  const int graphs = cases(12, 40);
  int left = 0, stayed = 0, missed = 0;
  for (int i = 0; i < graphs; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = leaving_graph(random, static_cast<int>(draw(random, 2, i % 8 == 7 ? 40 : 12)));
    const Graph stays = staying(graph);
    const std::int64_t all = resident_bytes(graph) + program_peak_bytes(graph);
    const std::int64_t bound = bound_with_leaving(graph);
    for (int k = 0; k <= 6; ++k) {
      const std::int64_t budget = bound + (all - bound) * k / 6;
      const PlanResult result = plan(graph, options_of(budget));
      const PlanResult without = plan(stays, options_of(budget));
      if (without.plan) {  // nothing changes where the budget can be met as it is
        ASSERT_TRUE(result.plan.has_value());
        EXPECT_TRUE(result.plan->away.empty());
        Plan same = *result.plan;
        same.graph_sha256 = stays.sha256;
        EXPECT_EQ(to_json(same), to_json(*without.plan));
        ++stayed;
        continue;
      }
      if (!result.plan) {
        EXPECT_NE(result.outcome, Outcome::kOptimal);
        EXPECT_LT(budget, result.smallest_bytes);
        ++missed;
        continue;
      }
      expect_good(graph, result, budget);
      EXPECT_FALSE(result.plan->away.empty());
      EXPECT_EQ(to_json(*plan(graph, options_of(budget)).plan), to_json(*result.plan));
      ++left;
    }
    EXPECT_FALSE(plan(graph, options_of(bound - 1)).plan.has_value());
  }
  EXPECT_GT(left, graphs / 2);
  EXPECT_GT(stayed, graphs);
  EXPECT_LT(missed, 2 * left);
}

// A budget that no plan can keep: what is told as the smallest that works does work, and is no more than without leaving.
// Over a fast link the budget planner copies out what is written early, and back for nothing but to be stored: what the
// host has already.
TEST(Leaving, PlansAreValidOverAnyLink) {
  int met = 0;
  const int graphs = cases(24, 400);
  for (int i = 0; i < graphs; ++i) {
    // The first one failed once
    const std::uint64_t seed = i == 0 ? 100'141 : first_seed() * 100'000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = leaving_graph(random, static_cast<int>(draw(random, 6, 24)));
    PlanOptions options = options_of(0);
    options.link_gbps = std::array{0.05, 0.5, 5.0, 500.0}[static_cast<std::size_t>(draw(random, 0, 3))];
    const std::int64_t bound = bound_with_leaving(graph), all = resident_bytes(graph) + program_peak_bytes(graph);
    for (const int part : {0, 1, 3}) {
      options.budget_bytes = bound + (all - bound) * part / 8;
      PlanResult result;
      ASSERT_NO_THROW(result = plan(graph, options));
      if (!result.plan) continue;
      expect_good(graph, result, *options.budget_bytes);
      ++met;
    }
  }
  EXPECT_GT(met, graphs);
}

TEST(Leaving, TheSmallestBudgetThatIsToldWorks) {
  int below = 0;
  for (int i = 0; i < 30; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = leaving_graph(random, static_cast<int>(draw(random, 2, 12)));
    const PlanResult none = plan(graph, options_of(1));
    ASSERT_FALSE(none.plan.has_value());
    EXPECT_EQ(none.outcome, Outcome::kInfeasible);
    EXPECT_EQ(none.budget_bound_bytes, bound_with_leaving(graph));
    EXPECT_EQ(plan(graph, options_of(none.budget_bound_bytes - 1)).smallest_bytes, none.smallest_bytes);
    const PlanResult least = plan(graph, options_of(none.smallest_bytes));
    ASSERT_TRUE(least.plan.has_value());
    expect_good(graph, least, none.smallest_bytes);
    const std::int64_t without = plan(staying(graph), options_of(1)).smallest_bytes;
    EXPECT_LE(none.smallest_bytes, without);
    below += none.smallest_bytes < without ? 1 : 0;
  }
  EXPECT_GT(below, 15);
}

// Ten layers of 100 bytes, each read on the way there and on the way back, where it is written.
Graph ten_layers() {
  GraphBuilder g;
  std::vector<int> layers, results{g.buffer(10)};
  for (int i = 0; i < 10; ++i) layers.push_back(g.resident(100));
  g.op({}, {}, {results[0]}).cost_ns = 100'000;
  for (const int layer : layers) {
    results.push_back(g.buffer(10));
    g.op({layer, results[results.size() - 2]}, {}, {results.back()}).cost_ns = 100'000;
  }
  for (std::size_t i = layers.size(); i-- > 0;) g.op({results[i]}, {layers[i]}, {}).cost_ns = 100'000;
  Graph graph = g.build();
  for (const int layer : layers) graph.buffers[static_cast<std::size_t>(layer)].leaves = true;
  seal(graph);
  return graph;
}

TEST(Leaving, TenLayersPassThroughThePlaceOfThree) {
  const Graph graph = ten_layers();
  PlanOptions options = options_of(420);
  options.link_gbps = 10;
  const PlanResult result = plan(graph, options);
  ASSERT_TRUE(result.plan.has_value());
  expect_good(graph, result, 420);
  EXPECT_GE(result.away_bytes, 700);
  EXPECT_EQ(result.swapped_bytes, result.away_bytes);           // each is written back once
  EXPECT_LE(result.step_ns, result.program_step_ns + 120'000);  // all but the last copy runs beside the ops
  EXPECT_EQ(bound_with_leaving(graph), 120);
}

// 20 bytes are an op's own, and a layer that is away needs its place, so that three stay: seven are fetched, 500 us each,
// where all ops take 2.1 ms.
TEST(Leaving, ASlowLinkBoundsTheStep) {
  const Graph graph = ten_layers();
  PlanOptions options = options_of(420);
  options.link_gbps = 0.0002;
  const PlanResult result = plan(graph, options);
  ASSERT_TRUE(result.plan.has_value());
  expect_good(graph, result, 420);
  EXPECT_EQ(result.step_bound_ns, 3'510'000);
  EXPECT_LT(result.step_ns, 3 * *result.step_bound_ns);
  EXPECT_EQ(time_bound_with_leaving(graph, 1'020, {options.link_gbps}), result.program_step_ns);
}

// All orders, and everybody who may leave or not: no plan is below the bounds.
TEST(Leaving, BoundsHoldAgainstEveryOrderAndEveryChoice) {
  int tried = 0, met = 0;
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = leaving_graph(random, static_cast<int>(draw(random, 1, 4)), false);
    std::vector<BufferId> may;
    for (std::size_t b = 0; b < graph.buffers.size(); ++b) {
      const auto uses = [&](const Op& op) {
        return std::ranges::count(op.reads, BufferId(b)) + std::ranges::count(op.writes, BufferId(b)) > 0;
      };
      if (graph.buffers[b].leaves && graph.buffers[b].bytes > 0 && std::ranges::any_of(graph.ops, uses))
        may.emplace_back(b);
    }
    if (may.empty() || may.size() > 3) continue;
    const std::int64_t bound = bound_with_leaving(graph);
    std::int64_t least = resident_bytes(graph) + program_peak_bytes(graph);
    for (unsigned choice = 1; choice < (1U << may.size()); ++choice) {
      std::vector<BufferId> away;
      for (std::size_t m = 0; m < may.size(); ++m)
        if ((choice >> m & 1U) != 0) away.push_back(may[m]);
      const AwayGraph sent = send_away(graph, away, budget::Link{0.5});
      if (sent.graph.ops.size() > 7) continue;
      const std::int64_t peak = least_peak(sent.graph).with_reuse;
      EXPECT_LE(lower_bound_bytes(sent.graph), peak);
      least = std::min(least, resident_bytes(sent.graph) + peak);
      ++tried;
    }
    EXPECT_LE(bound, least);
    const PlanResult result = plan(graph, options_of(least));
    met += result.plan.has_value();
    if (result.plan) expect_good(graph, result, least);
  }
  EXPECT_GT(tried, 40);
  EXPECT_GT(met, 20);
}

}  // namespace
}  // namespace stowage::testing
