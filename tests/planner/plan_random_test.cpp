// plan() against every permutation of small random graphs, with the checker as the judge of each.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "order/search.h"
#include "stowage/check.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/every_order.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

class PlanOnRandomGraphs : public ::testing::TestWithParam<int> {};  // number of ops

TEST_P(PlanOnRandomGraphs, BoundOptimumAndPeakAreInOrderAndOptimalMeansOptimal) {
  const int ops = GetParam();
  const int graphs = ops <= 5 ? 400 : ops == 6 ? 120 : 12;
  int proven = 0, beat_program = 0, saved = 0;
  for (int i = 0; i < graphs; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", ops " + std::to_string(ops));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = ops;
    const Graph graph = random_graph(random, options);
    const LeastPeak least = least_peak(graph);
    const PlanResult result = plan(graph, {});
    ASSERT_TRUE(result.plan.has_value());
    EXPECT_TRUE(check(graph, *result.plan).valid);
    EXPECT_LE(lower_bound_bytes(graph), least.with_reuse);
    EXPECT_LE(result.lower_bound_bytes, least.with_reuse);
    if (least.all_pairs) {
      EXPECT_LE(least.with_reuse, result.peak_bytes);
    }
    EXPECT_LE(result.peak_bytes, result.program_peak_bytes);
    EXPECT_LE(result.peak_bytes, result.plan->arena_bytes);
    EXPECT_EQ(result.outcome == Outcome::kOptimal, result.peak_bytes == result.lower_bound_bytes);
    proven += result.outcome == Outcome::kOptimal;
    beat_program += result.peak_bytes < result.program_peak_bytes;
    const AnalysedGraph analysed(graph);
    const OrderResult found = find_order(OrderModel(analysed), {});
    if (least.all_pairs) {
      EXPECT_EQ(found.peak_bytes, least.with_reuse);
    }
    EXPECT_EQ(found.peak_bytes, found.bound_bytes);
    saved += found.peak_bytes < least.plain;

    PlanOptions off;
    off.takeover = false;
    const PlanResult without = plan(graph, off);
    EXPECT_EQ(without.peak_bytes, least.plain) << "graphs this small are solved exactly";
    EXPECT_LE(result.plan->arena_bytes, without.plan->arena_bytes);
  }
  RecordProperty("saved", saved);
  RecordProperty("proven", proven);
  RecordProperty("beat_program", beat_program);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PlanOnRandomGraphs, ::testing::Values(1, 3, 4, 5, 6, 7));

TEST(PlanOnRandomGraphs, LargerGraphsAreValidDeterministicAndNeverWorseThanProgramOrder) {
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 20 + i;
    const Graph graph = random_graph(random, options);
    PlanOptions quick;
    quick.order_node_budget = quick.layout_node_budget = 20'000;
    const PlanResult first = plan(graph, quick), second = plan(graph, quick);
    EXPECT_LE(first.lower_bound_bytes, first.peak_bytes);
    EXPECT_LE(first.peak_bytes, first.program_peak_bytes);
    EXPECT_EQ(to_json(*first.plan), to_json(*second.plan));
  }
}

TEST(PlanOnRandomGraphs, ScalingAllSizesScalesPeakAndBound) {
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 8;
    options.align = 1;
    const Graph graph = random_graph(random, options);
    Graph scaled = graph;
    for (Buffer& buffer : scaled.buffers) buffer.bytes *= 7;
    for (Op& op : scaled.ops)
      for (Scratch& scratch : op.scratch) scratch.bytes *= 7;
    seal(scaled);
    const PlanResult small = plan(graph, {}), large = plan(scaled, {});
    EXPECT_EQ(7 * small.peak_bytes, large.peak_bytes);
    EXPECT_EQ(7 * small.lower_bound_bytes, large.lower_bound_bytes);
  }
}

TEST(PlanOnRandomGraphs, AResidentThatNobodyTouchesChangesNothingButTheResidents) {
  for (int i = 0; i < 20; ++i) {
    std::mt19937_64 random(first_seed() * 1000 + static_cast<std::uint64_t>(i));
    const Graph graph = random_graph(random, {});
    Graph more = graph;
    more.buffers.push_back({"idle", 1000, BufferKind::kParameter, true, false, ""});
    seal(more);
    const PlanResult with = plan(more, {}), without = plan(graph, {});
    EXPECT_EQ(with.peak_bytes, without.peak_bytes);
    EXPECT_EQ(with.plan->arena_bytes, without.plan->arena_bytes);
    EXPECT_EQ(with.resident_bytes, without.resident_bytes + 1000);
  }
}

}  // namespace
}  // namespace stowage::testing
