// plan() by ROAM: valid whatever is switched off, the same each time, and good where its parts promise it.
#include <gtest/gtest.h>

#include <random>

#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/training_graph.h"

namespace stowage::testing {
namespace {

PlanOptions by_roam() {
  PlanOptions options;
  options.method = Method::kRoam;
  options.roam.ilp_iterations = 200;
  options.roam.ilp_nodes = 10;
  return options;
}

// All parts, each part alone missing, none; and the multi-stream model.
std::vector<PlanOptions> variants() {
  std::vector<PlanOptions> result = {by_roam(), by_roam(), by_roam()};
  result[1].roam.multi_stream = true;
  result[2].roam.node_limit = 5;
  for (const RoamPart& part : kRoamParts) {
    result[2].roam.*part.enabled = part.name == "tree";
    result.push_back(by_roam());
    result.back().roam.*part.enabled = false;
  }
  return result;
}

void expect_sound(const Graph& graph, const PlanResult& result) {
  ASSERT_TRUE(result.plan.has_value());
  const CheckReport report = check(graph, *result.plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(report.peak_bytes, result.peak_bytes);
  EXPECT_LE(result.lower_bound_bytes, result.peak_bytes);
  EXPECT_LE(result.peak_bytes, result.plan->arena_bytes);
  EXPECT_NE(result.plan->meta.find("\"method\":\"roam\""), std::string::npos);
}

TEST(Roam, EveryVariantPlansRandomGraphs) {
  const std::vector<PlanOptions> all = variants();
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = i % 25;
    const Graph graph = random_graph(random, options);
    for (std::size_t v = 0; v < all.size(); ++v) {
      if (i % 10 != 0 && v != static_cast<std::size_t>(i) % all.size()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", variant " + std::to_string(v));
      expect_sound(graph, plan(graph, all[v]));
    }
  }
}

TEST(Roam, EveryVariantPlansATrainingStep) {
  for (const bool recompute : {false, true}) {
    TrainingGraphOptions training;
    training.layers = 5;
    training.recompute = recompute;
    const Graph graph = training_graph(training);
    for (const PlanOptions& options : variants()) expect_sound(graph, plan(graph, options));
  }
}

TEST(Roam, UpdatesBringTheGainOnATrainingStep) {
  TrainingGraphOptions training;
  training.layers = 12;
  training.weight_bytes = 16384;
  const Graph graph = training_graph(training);
  const PlanResult full = plan(graph, by_roam()), ours = plan(graph, {});
  EXPECT_LT(full.peak_bytes, full.program_peak_bytes / 2);
  EXPECT_EQ(full.plan->arena_bytes, full.peak_bytes);
  EXPECT_LE(ours.peak_bytes, full.peak_bytes);
  EXPECT_LE(ours.lower_bound_bytes, full.peak_bytes);
}

// The default limits, on graphs that are one leaf: the ILP is the whole method, and it is exact.
TEST(Roam, OneLeafIsSolvedToTheOptimum) {
  int better = 0;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 8;
    const Graph graph = random_graph(random, options);
    PlanOptions ours, roam;
    ours.takeover = false;
    roam.method = Method::kRoam;
    roam.roam.updates = roam.roam.segments = false;
    const PlanResult best = plan(graph, ours), solved = plan(graph, roam);
    EXPECT_EQ(best.peak_bytes, solved.peak_bytes);
    better += solved.peak_bytes < solved.program_peak_bytes;
  }
  EXPECT_GT(better, 5);
}

TEST(Roam, NeverBelowTheOptimumOfOurSearch) {
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 10;
    const Graph graph = random_graph(random, options);
    PlanOptions ours;
    ours.takeover = false;
    const PlanResult best = plan(graph, ours), roam = plan(graph, by_roam());
    EXPECT_LE(best.peak_bytes, roam.peak_bytes);
    EXPECT_LE(best.plan->arena_bytes, roam.plan->arena_bytes);
  }
}

TEST(Roam, TheSamePlanEachTime) {
  std::mt19937_64 random(first_seed());
  RandomGraphOptions options;
  options.ops = 40;
  const Graph graph = random_graph(random, options);
  EXPECT_EQ(to_json(*plan(graph, by_roam()).plan), to_json(*plan(graph, by_roam()).plan));
  const Graph training = training_graph({});
  EXPECT_EQ(to_json(*plan(training, by_roam()).plan), to_json(*plan(training, by_roam()).plan));
}

TEST(Roam, SharedStepsTakeAtLeastWhatOneStreamTakes) {
  PlanOptions options = by_roam();
  options.roam.multi_stream = true;
  TrainingGraphOptions training;
  training.layers = 6;
  const PlanResult result = plan(training_graph(training), options);
  const std::string key = "\"multi_stream_peak_bytes\":";
  const std::size_t at = result.plan->meta.find(key);
  ASSERT_NE(at, std::string::npos);
  EXPECT_GE(std::stoll(result.plan->meta.substr(at + key.size())), result.peak_bytes);
}

TEST(Roam, ABudgetIsJudged) {
  const Graph graph = training_graph({});
  PlanOptions options = by_roam();
  options.budget_bytes = resident_bytes(graph) + 1;
  EXPECT_EQ(plan(graph, options).outcome, Outcome::kInfeasible);
}

TEST(Roam, WithoutHighsItSaysWhatToInstall) {
  PlanOptions options = by_roam();
  options.solver_library = "/nowhere/libhighs.so.1";
  EXPECT_THROW(plan(training_graph({}), options), SolverMissing);
  options.roam.order_ilp = options.roam.layout_ilp = false;
  EXPECT_NO_THROW(plan(training_graph({}), options));
}

TEST(Roam, CannotKeepTheProgramsOrder) {
  PlanOptions options = by_roam();
  options.keep_order = true;
  EXPECT_THROW(plan(training_graph({}), options), Error);
}

}  // namespace
}  // namespace stowage::testing
