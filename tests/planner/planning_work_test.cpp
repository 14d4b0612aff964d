// Planning steps of thousands of small ops: what the searches look at is counted, so that a slow loop shows on any
// machine.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stowage/check.h"
#include "stowage/planner.h"
#include "support/recurrent_graph.h"
#include "support/training_graph.h"

namespace stowage::testing {
namespace {

constexpr std::int64_t kMostWork = 2'000'000'000;  // of any graph of up to 10,000 ops: about a nanosecond a unit

PlanResult planned(const Graph& graph, bool in_place_reuse) {
  PlanOptions options;
  options.takeover = in_place_reuse;
  PlanResult result = plan(graph, options);
  EXPECT_TRUE(check(graph, *result.plan).valid);
  EXPECT_LE(result.work, kMostWork) << graph.ops.size() << " ops";
  return result;
}

TEST(PlanningWork, OfRecurrentSteps) {
  for (const RecurrentOptions& options :
       {RecurrentOptions{4, 2, 90}, RecurrentOptions{3, 1, 170}, RecurrentOptions{1, 4, 90, 1600, false}}) {
    const Graph graph = recurrent_graph(options);
    SCOPED_TRACE(std::to_string(options.gates) + " gates, " + std::to_string(graph.ops.size()) + " ops");
    EXPECT_GT(graph.ops.size(), 3'500U);
    const PlanResult with = planned(graph, true), without = planned(graph, false);
    EXPECT_LE(with.peak_bytes, without.peak_bytes + without.peak_bytes / 200);
    EXPECT_LE(with.gap, 0.03);
    EXPECT_LE(with.plan->arena_bytes, with.peak_bytes + with.peak_bytes / 100);
  }
}

TEST(PlanningWork, OfOptimizersThatLoopOverHundredsOfParameters) {
  for (const int temporaries : {1, 4}) {
    TrainingGraphOptions options;
    options.layers = 500;
    options.activation_bytes = 3072;
    options.weight_bytes = 9216;
    options.temporaries = temporaries;
    const Graph graph = training_graph(options);
    SCOPED_TRACE(std::to_string(temporaries) + " temporaries, " + std::to_string(graph.ops.size()) + " ops");
    EXPECT_LE(planned(graph, true).gap, 0.05);
  }
}

TEST(PlanningWork, GrowsWithTheEffortThatIsAskedFor) {
  const Graph graph = recurrent_graph({1, 2, 60});
  PlanOptions little, more;
  little.order_node_budget = little.layout_node_budget = 1'000;
  const PlanResult least = plan(graph, little), most = plan(graph, more);
  EXPECT_LT(least.work, most.work);
  EXPECT_GE(least.peak_bytes, most.peak_bytes);
}

}  // namespace
}  // namespace stowage::testing
