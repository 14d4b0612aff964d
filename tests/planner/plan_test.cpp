// plan() on graphs small enough to plan by hand.
#include <gtest/gtest.h>

#include "stowage/check.h"
#include "stowage/planner.h"
#include "support/builder.h"

namespace stowage::testing {
namespace {

// Two branches, each a big temporary that leaves a small result:     program order makes both big ones first: 20 live;
//   op 0 -> big0   op 1 -> big1   op 2: big0 -> small0   op 3: big1 -> small1   op 4: both -> loss     one by one: 12.
Graph two_branches() {
  GraphBuilder g;
  const int big0 = g.buffer(10), big1 = g.buffer(10), small0 = g.buffer(1), small1 = g.buffer(1), loss = g.returned(1);
  g.op({}, {}, {big0}).cost_ns = 5;
  g.op({}, {}, {big1});
  g.op({big0}, {}, {small0});
  g.op({big1}, {}, {small1});
  g.op({small0, small1}, {}, {loss}).cost_ns = 2;
  return g.build();
}

TEST(Plan, RunsOneBranchAfterTheOther) {
  const PlanResult result = plan(two_branches(), {});
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.program_peak_bytes, 21);
  EXPECT_EQ(result.peak_bytes, 12);
  EXPECT_EQ(result.lower_bound_bytes, 12);
  EXPECT_EQ(result.plan->arena_bytes, 12);
  EXPECT_EQ(result.gap, 0);
  EXPECT_EQ(result.step_ns, 7);
  EXPECT_EQ(result.program_step_ns, 7);
  EXPECT_FALSE(result.step_bound_ns.has_value());
}

TEST(Plan, KeepsTheOrderWhenAsked) {
  PlanOptions options;
  options.keep_order = true;
  const PlanResult result = plan(two_branches(), options);
  EXPECT_EQ(result.outcome, Outcome::kFeasible);
  EXPECT_EQ(result.peak_bytes, 21);
  for (std::size_t i = 0; i < result.plan->steps.size(); ++i) EXPECT_EQ(result.plan->steps[i].op.index(), i);
}

TEST(Plan, AnswersABudget) {
  PlanOptions options;
  options.budget_bytes = 12;
  PlanResult result = plan(two_branches(), options);
  EXPECT_TRUE(result.plan.has_value());
  EXPECT_EQ(result.step_bound_ns, 7);
  options.budget_bytes = 10;  // one op touches 11
  result = plan(two_branches(), options);
  EXPECT_EQ(result.outcome, Outcome::kInfeasible);
  EXPECT_EQ(result.budget_bound_bytes, 11);
  EXPECT_EQ(result.smallest_bytes, 11);  // what the first branch leaves waits on the host while the second runs
  EXPECT_FALSE(result.plan.has_value());
  options.link_gbps = 0;
  result = plan(two_branches(), options);
  EXPECT_EQ(result.smallest_bytes, 12);  // making it again would take the same 12
}

TEST(Plan, AnEmptyGraphHasAnEmptyPlan) {
  const PlanResult result = plan(GraphBuilder().build(), {});
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.plan->arena_bytes, 0);
  EXPECT_EQ(result.gap, 0);
}

TEST(Plan, ReportsItsPhases) {
  std::vector<std::string> phases;
  PlanOptions options;
  options.progress = [&](std::string_view phase, double done) {
    if (done == 0) phases.emplace_back(phase);
  };
  plan(two_branches(), options);
  EXPECT_EQ(phases, (std::vector<std::string>{"order", "layout", "verify"}));
}

}  // namespace
}  // namespace stowage::testing
