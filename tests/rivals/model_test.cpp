// MODeL's two programs on graphs small enough for brute force, and under limits.
#include <gtest/gtest.h>

#include <random>

#include "graph/ordered_graph.h"
#include "rivals/model_ilp.h"
#include "support/every_order.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/training_graph.h"

namespace stowage::testing {
namespace {

using rivals::model_ilp;
using rivals::ModelOptions;
using rivals::ModelResult;

TEST(ModelIlp, OneStreamIsWithinItsGapOfTheBestPermutation) {
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions graph_options;
    graph_options.ops = i % 7;
    const Graph graph = random_graph(random, graph_options);
    ModelOptions options;
    options.multi_stream = false;
    const ModelResult result = model_ilp(graph, options);
    const std::int64_t least = graph.ops.empty() ? 0 : least_peak(graph).plain;
    EXPECT_EQ(result.order_stage.outcome, Outcome::kOptimal);
    EXPECT_EQ(result.peak_bytes, result.model_peak_bytes);
    EXPECT_GE(result.peak_bytes, least);
    EXPECT_LE(static_cast<double>(result.peak_bytes), 1.005 * static_cast<double>(least) + 2);
    EXPECT_LE(result.order_stage.bound_bytes, least);
    EXPECT_GE(result.arena_bytes, result.peak_bytes);
    EXPECT_LE(result.layout_stage.bound_bytes, result.arena_bytes);
  }
}

TEST(ModelIlp, StepsThatAreSharedTakeAtLeastWhatTheirOrderTakes) {
  TrainingGraphOptions training;
  training.layers = 3;
  const Graph graph = training_graph(training);
  ModelOptions options;
  options.iterations = 2000;
  const ModelResult result = model_ilp(graph, options);
  EXPECT_GE(result.model_peak_bytes, result.peak_bytes);
  EXPECT_LE(result.order_stage.bound_bytes, result.model_peak_bytes);
  EXPECT_NE(result.order_stage.outcome, Outcome::kUnknown);
}

TEST(ModelIlp, ProgramsThatAreTooLargeLeaveTheStart) {
  const Graph graph = training_graph({});
  ModelOptions options;
  options.multi_stream = false;
  options.entries = 10;
  options.pairs = 0;
  const ModelResult result = model_ilp(graph, options);
  EXPECT_EQ(result.order_stage.outcome, Outcome::kUnknown);
  EXPECT_EQ(result.order, program_order(graph));
  EXPECT_EQ(result.peak_bytes, peak_bytes(graph, program_order(graph)));
}

}  // namespace
}  // namespace stowage::testing
