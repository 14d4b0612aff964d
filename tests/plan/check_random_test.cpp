// check() against the naive twin on random plans: walks of random changes from a valid plan, where each change that
// keeps the plan valid is kept. STOWAGE_TEST_SEED picks the seed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "stowage/check.h"
#include "stowage/io.h"
#include "support/naive_checker.h"
#include "support/random_graph.h"
#include "support/random_plan.h"

namespace stowage::testing {
namespace {

std::uint64_t first_seed() {
  const char* text = std::getenv("STOWAGE_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

struct RandomTally {
  int valid = 0;
  int broken = 0;
  int recomputed = 0;  // valid plans with a second run
  int swapped = 0;     // valid plans with a swap_in
  std::array<int, 7> by_rule{};
};

void count_features(const Graph& graph, const Plan& plan, RandomTally& tally) {
  std::size_t runs = 0;
  bool swapped = false;
  for (const Step& step : plan.steps) {
    runs += step.kind == Step::Kind::kRun;
    swapped = swapped || step.kind == Step::Kind::kSwapIn;
  }
  tally.recomputed += runs > graph.ops.size();
  tally.swapped += swapped;
}

// Both checkers agree on `plan`; returns whether it is valid.
bool compare(const Graph& graph, const Plan& plan, RandomTally& tally) {
  const CheckReport report = check(graph, plan);
  const auto expected = naive_peak(graph, plan);
  EXPECT_EQ(report.valid, expected.has_value()) << report.message << "\n" << to_json(graph) << to_json(plan);
  EXPECT_EQ(report.peak_bytes, expected.value_or(0)) << to_json(graph) << to_json(plan);
  EXPECT_EQ(report.valid, report.message.empty());
  EXPECT_EQ(report.message.find('\n'), std::string::npos);
  ++(report.valid ? tally.valid : tally.broken);
  ++tally.by_rule.at(static_cast<std::size_t>(report.rule));
  if (report.valid) count_features(graph, plan, tally);
  return report.valid;
}

TEST(CheckRandom, AgreesWithNaiveTwinOnMutatedPlans) {
  const std::uint64_t first = first_seed();
  RecordProperty("seed", std::to_string(first));
  RandomTally tally;
  for (std::uint64_t seed = first; seed < first + 1500; ++seed) {
    SCOPED_TRACE("STOWAGE_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = static_cast<int>(draw(random, 1, 9));
    options.ordering = chance(random, 50);
    options.in_place = chance(random, 70);
    const Graph graph = random_graph(random, options);
    Plan plan = simple_plan(graph);
    ASSERT_TRUE(compare(graph, plan, tally)) << to_json(graph) << to_json(plan);
    for (int round = 0; round < 60; ++round) {
      Plan changed = mutate(graph, plan, random);
      if (compare(graph, changed, tally) && changed.steps.size() < 30) plan = std::move(changed);
      if (HasFailure()) return;
    }
  }
  // The walks must have been everywhere, or the comparison says little.
  EXPECT_GT(tally.valid, 1000);
  EXPECT_GT(tally.recomputed, 300);
  EXPECT_GT(tally.swapped, 300);
  for (const std::size_t rule : {1, 2, 3, 4, 5, 6}) EXPECT_GT(tally.by_rule[rule], 50) << "rule " << rule;
}

}  // namespace
}  // namespace stowage::testing
