// The checker against broken planners: what each of some fifty faults makes of random graphs is rejected whenever it is
// invalid by the slow checker's account, and accepted where the fault happened to do no harm. STOWAGE_TEST_SEED picks
// the seed.
#include <gtest/gtest.h>

#include <array>

#include "stowage/check.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/broken_planner.h"
#include "support/naive_checker.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

constexpr auto kFaults = static_cast<std::size_t>(Fault::kCount);

struct PlannedGraph {
  Graph graph;
  std::vector<Step> steps;
};

// A graph of every feature, and the steps of a plan that runs ops again or copies over the link, where that was needed.
PlannedGraph random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomGraphOptions shape;
  shape.ops = static_cast<int>(draw(random, 4, 10));
  PlannedGraph made{random_graph(random, shape), {}};
  for (const ReusePair& last : made.graph.ops.back().takeover) made.graph.buffers[last.read.index()].returned = true;
  seal(made.graph);
  PlanOptions options;
  options.order_node_budget = options.layout_node_budget = 200;
  options.link_gbps = seed % 3 == 0 ? 0 : 1000;
  options.budget_bytes = 0;
  const PlanResult none = plan(made.graph, options);
  options.budget_bytes = std::max(none.smallest_bytes, none.resident_bytes);
  made.steps = plan(made.graph, options).plan->steps;
  return made;
}

struct FaultTally {
  int invalid = 0, harmless = 0;
  std::array<int, 7> by_rule{};
};

TEST(CheckFaults, EachBrokenPlannerIsCaught) {
  std::array<FaultTally, kFaults> tally;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 150; ++seed) {
    const PlannedGraph c = random_case(seed);
    for (std::size_t f = 0; f < kFaults; ++f) {
      const auto fault = static_cast<Fault>(f);
      SCOPED_TRACE(std::string(name_of(fault)) + ", STOWAGE_TEST_SEED=" + std::to_string(seed));
      std::mt19937_64 random(seed);
      const Plan plan = broken_plan(c.graph, c.steps, fault, random);
      const CheckReport report = check(c.graph, plan);
      const auto peak = naive_peak(c.graph, plan);
      ASSERT_EQ(report.valid, peak.has_value()) << report.message << "\n" << to_json(c.graph) << to_json(plan);
      ASSERT_EQ(report.peak_bytes, peak.value_or(0)) << to_json(c.graph) << to_json(plan);
      ++(report.valid ? tally[f].harmless : tally[f].invalid);
      if (!report.valid) ++tally[f].by_rule.at(static_cast<std::size_t>(report.rule));
    }
  }
  EXPECT_EQ(tally[0].invalid, 0) << "the planner is right until it is broken";
  for (std::size_t f = 1; f < kFaults; ++f) {
    EXPECT_GT(tally[f].invalid, 0) << name_of(static_cast<Fault>(f)) << ": does no harm, so nothing is tested";
    RecordProperty(std::string(name_of(static_cast<Fault>(f))), tally[f].invalid);
  }
}

}  // namespace
}  // namespace stowage::testing
