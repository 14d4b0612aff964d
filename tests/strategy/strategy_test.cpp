// choose_strategies() against brute force on small problems, and on problems whose answer is known.
#include "stowage/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

#include "stowage/error.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

StrategyProblem random_problem(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  const auto cost = [&](std::uint64_t most) { return below(5) == 0 ? kForbiddenCost + below(1000) : below(most); };
  StrategyProblem problem;
  const std::int64_t nodes = 1 + below(6);
  for (std::int64_t i = 0; i < nodes; ++i) {
    StrategyNode node;
    node.lower = below(8);
    node.upper = below(10);  // some are empty
    for (std::int64_t s = 1 + below(4); s > 0; --s) {
      node.costs.push_back(below(12) == 0 ? kForbiddenCost : below(40));
      node.usages.push_back(below(20));
    }
    problem.nodes.push_back(node);
  }
  for (std::int64_t e = nodes > 1 ? below(9) : 0; e > 0; --e) {
    StrategyEdge edge;
    edge.u = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(nodes)));
    edge.v = static_cast<std::int32_t>((edge.u + 1 + below(static_cast<std::uint64_t>(nodes - 1))) % nodes);
    const std::size_t pairs = problem.nodes[static_cast<std::size_t>(edge.u)].costs.size() *
                              problem.nodes[static_cast<std::size_t>(edge.v)].costs.size();
    while (edge.costs.size() < pairs) edge.costs.push_back(cost(60));
    problem.edges.push_back(edge);
  }
  if (below(4) != 0) problem.usage_limit = below(50);
  return problem;
}

// The cost of every choice, each looked at on its own.
std::optional<std::int64_t> least_cost(const StrategyProblem& problem) {
  std::optional<std::int64_t> least;
  std::vector<std::int32_t> choice(problem.nodes.size(), 0);
  while (true) {
    std::int64_t sum = 0;
    bool allowed = true;
    for (std::size_t i = 0; i < choice.size(); ++i) {
      const std::int64_t c = problem.nodes[i].costs[static_cast<std::size_t>(choice[i])];
      allowed = allowed && c < kForbiddenCost;
      sum += c;
    }
    for (const StrategyEdge& edge : problem.edges) {
      const auto columns = static_cast<std::int64_t>(problem.nodes[static_cast<std::size_t>(edge.v)].costs.size());
      const std::int64_t c = edge.costs[static_cast<std::size_t>(choice[static_cast<std::size_t>(edge.u)] * columns +
                                                                 choice[static_cast<std::size_t>(edge.v)])];
      allowed = allowed && c < kForbiddenCost;
      if (allowed) sum += c;
    }
    for (std::int64_t time = 0; time < 10 && problem.usage_limit; ++time) {
      std::int64_t usage = 0;
      for (std::size_t i = 0; i < choice.size(); ++i) {
        const StrategyNode& node = problem.nodes[i];
        if (node.lower <= time && time < node.upper) usage += node.usages[static_cast<std::size_t>(choice[i])];
      }
      allowed = allowed && usage <= *problem.usage_limit;
    }
    EXPECT_EQ(allowed, strategy_cost(problem, choice).has_value());
    if (allowed) {
      EXPECT_EQ(strategy_cost(problem, choice), sum);
      least = std::min(least.value_or(std::numeric_limits<std::int64_t>::max()), sum);
    }
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == static_cast<std::int32_t>(problem.nodes[i].costs.size()))
      choice[i++] = 0;
    if (i == choice.size()) return least;
  }
}

TEST(Strategy, RandomProblemsAgreeWithBruteForce) {
  StrategyOptions options;
  options.work_limit = 2'000'000;
  int found = 0;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StrategyProblem problem = random_problem(seed);
    const std::optional<std::int64_t> least = least_cost(problem);
    const StrategyResult result = choose_strategies(problem, options);
    if (result.outcome == Outcome::kInfeasible) {
      EXPECT_FALSE(least.has_value());
      continue;
    }
    ASSERT_TRUE(least.has_value());
    EXPECT_EQ(result.outcome, Outcome::kOptimal);
    EXPECT_EQ(result.bound, *least);
    EXPECT_EQ(result.cost, *least);
    EXPECT_EQ(strategy_cost(problem, result.strategies), *least);
    ++found;
  }
  EXPECT_GT(found, 300);
}

// Trying all choices, and what does without: the same answer.
TEST(Strategy, SearchAgreesWithTryingAll) {
  StrategyOptions options;
  options.work_limit = 2'000'000;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StrategyProblem problem = random_problem(seed);
    options.enumeration_limit = 0;
    const StrategyResult searched = choose_strategies(problem, options);
    options.enumeration_limit = 65'536;
    const StrategyResult tried = choose_strategies(problem, options);
    EXPECT_EQ(tried.outcome, searched.outcome);
    EXPECT_EQ(tried.cost, searched.cost);
  }
}

// Wherever it is stopped, what it tells is true. (The integer program may then know no bound at all.)
TEST(Strategy, StoppedAtAnyMomentItTellsTheTruth) {
  StrategyOptions options;
  options.work_limit = 200'000;
  options.enumeration_limit = 0;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StrategyProblem problem = random_problem(seed);
    const std::optional<std::int64_t> least = least_cost(problem);
    for (int questions = 0; questions < 12; ++questions) {
      int asked = 0;
      options.should_stop = [&] { return asked++ >= questions; };
      const StrategyResult result = choose_strategies(problem, options);
      if (!least) {
        EXPECT_TRUE(result.strategies.empty());
        continue;
      }
      EXPECT_NE(result.outcome, Outcome::kInfeasible);
      EXPECT_LE(result.bound, *least);
      if (result.outcome == Outcome::kOptimal) {
        EXPECT_EQ(result.cost, *least);
      }
      if (!result.strategies.empty()) {
        EXPECT_EQ(strategy_cost(problem, result.strategies), result.cost);
      }
    }
  }
}

// Small problems end soon, with a solver or without, and large costs are proven as small ones are.
TEST(Strategy, CostsOfAnySizeAreProven) {
  for (const std::int64_t unit : {std::int64_t{1}, std::int64_t{1} << 30, std::int64_t{1} << 50}) {
    StrategyProblem problem;
    problem.nodes = {{3, 7, {unit + 1}, {10}},
                     {4, 7, {unit, unit + 2}, {25, 25}},
                     {5, 9, {25, unit, 35}, {15, 20, 15}},
                     {8, 10, {85, 75}, {10, 10}}};
    problem.edges = {{0, 1, {30, 40}}, {0, 2, {50, 10, 40}}, {1, 3, {unit, 10, 20, 80}}};
    problem.usage_limit = 50;
    const StrategyResult result = choose_strategies(problem, {});
    EXPECT_EQ(result.outcome, Outcome::kOptimal);
    EXPECT_EQ(result.cost, least_cost(problem));
    EXPECT_EQ(result.bound, result.cost);
  }
}

TEST(Strategy, ALimitOnWorkGrowsWithTheProblem) {
  StrategyProblem problem;  // 17 labels too many to try all; the bound stays open, since a ring of three is frustrated
  for (int i = 0; i < 18; ++i) problem.nodes.push_back({0, 1, {0, 1}, {1, 2}});
  for (int i = 0; i < 18; ++i)
    problem.edges.push_back({i, (i + 1) % 18, {std::int64_t{1} << 52, 0, 0, (std::int64_t{1} << 52) + i}});
  for (int i = 0; i < 18; i += 3)
    problem.edges.push_back({i, (i + 2) % 18, {std::int64_t{1} << 51, 0, 0, std::int64_t{1} << 51}});
  problem.usage_limit = 20;
  const auto start = std::chrono::steady_clock::now();
  const StrategyResult result = choose_strategies(problem, {});
  EXPECT_FALSE(result.strategies.empty() && result.outcome != Outcome::kInfeasible);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// Each edge of a pair of nodes allows what it does, however much all of them cost together.
TEST(Strategy, ParallelEdgesAddUpToMoreThanWhatIsForbidden) {
  StrategyProblem problem;
  problem.nodes = {{0, 1, {1, 5}, {0, 0}}, {0, 1, {2}, {0}}};
  constexpr std::int64_t kMost = kForbiddenCost - 1;
  problem.edges = {{0, 1, {kMost, kForbiddenCost}}, {1, 0, {kMost, 0}}};
  for (const std::int64_t limit : {0, 1000}) {
    StrategyOptions options;
    options.enumeration_limit = limit;
    const StrategyResult result = choose_strategies(problem, options);
    EXPECT_EQ(result.cost, 2 * kMost + 3);
    EXPECT_LE(result.bound, result.cost);
    EXPECT_NE(result.outcome, Outcome::kInfeasible);
  }
}

TEST(Strategy, SumsThatOverflowAreRefused) {
  StrategyProblem costs, usages;
  for (int i = 0; i < 64; ++i) costs.nodes.push_back({0, 1, {kForbiddenCost - 1, kForbiddenCost + 1}, {0, 0}});
  for (int i = 0; i < 1024; ++i) usages.nodes.push_back({0, 1, {0}, {std::int64_t{1} << 52}});
  EXPECT_THROW(choose_strategies(costs, {}), Error);
  EXPECT_THROW(choose_strategies(usages, {}), Error);
  costs.nodes.resize(40);
  EXPECT_EQ(choose_strategies(costs, {}).cost, 40 * (kForbiddenCost - 1));
}

// A choice known to be allowed is planted in a ring of 60 nodes: big enough that annealing runs, and the integer
// program after it.
TEST(Strategy, AnnealingMeetsThePlantedLimit) {
  std::mt19937_64 random(first_seed());
  StrategyProblem problem;
  std::vector<std::int32_t> planted;
  for (int i = 0; i < 60; ++i) {
    StrategyNode node{i % 20, i % 20 + 5, {}, {}};
    for (int s = 0; s < 8; ++s) {
      node.costs.push_back(static_cast<std::int64_t>(random() % 100));
      node.usages.push_back(static_cast<std::int64_t>(1 + random() % 50));
    }
    planted.push_back(static_cast<std::int32_t>(random() % 8));
    node.usages[static_cast<std::size_t>(planted.back())] = 5;
    problem.nodes.push_back(node);
  }
  for (int i = 0; i < 60; ++i) {
    StrategyEdge edge{i, (i + 1) % 60, {}};
    for (int pair = 0; pair < 64; ++pair)
      edge.costs.push_back(random() % 3 == 0 ? kForbiddenCost : static_cast<std::int64_t>(random() % 100));
    edge.costs[static_cast<std::size_t>(planted[static_cast<std::size_t>(i)] * 8 +
                                        planted[static_cast<std::size_t>((i + 1) % 60)])] = 60;
    problem.edges.push_back(edge);
  }
  problem.usage_limit = 5 * 16;
  const std::int64_t allowed = strategy_cost(problem, planted).value();
  StrategyOptions options;
  options.work_limit = 40'000'000;
  const StrategyResult result = choose_strategies(problem, options);
  ASSERT_FALSE(result.strategies.empty());
  EXPECT_EQ(strategy_cost(problem, result.strategies), result.cost);
  EXPECT_LE(result.cost, allowed);
  EXPECT_LE(result.bound, result.cost);
  EXPECT_EQ(choose_strategies(problem, options).strategies, result.strategies);
}

// Layers of eight nodes, each fast and large or slow and small, and all alive at once. What a byte is worth must be found
// well: at any limit the bound comes near to the linear program's, which has an answer by hand, and rises as the limit
// falls.
TEST(Strategy, TheBoundKnowsWhatBytesAreWorth) {
  std::mt19937_64 random(first_seed());
  StrategyProblem problem;
  std::vector<std::int64_t> slower;  // what a node costs more when small; all save as many bytes
  for (int i = 0; i < 4000; ++i) {
    slower.push_back(static_cast<std::int64_t>(1 + random() % 1000));
    problem.nodes.push_back({i / 8, 600, {100, 100 + slower.back()}, {10, 4}});
    if (i > 0) problem.edges.push_back({i - 1, i, {0, 0, 0, 0}});
  }
  std::sort(slower.begin(), slower.end());
  StrategyOptions options;
  options.work_limit = 100'000'000;
  std::int64_t before = 0;
  for (const std::size_t small : {0U, 1000U, 2000U, 3000U, 3900U}) {
    problem.usage_limit = 40'000 - 6 * static_cast<std::int64_t>(small);
    std::int64_t least = 400'000;
    for (std::size_t i = 0; i < small; ++i) least += slower[i];
    const StrategyResult result = choose_strategies(problem, options);
    EXPECT_LE(result.bound, least);
    EXPECT_GE(static_cast<double>(result.bound), 0.98 * static_cast<double>(least)) << small;
    EXPECT_GE(result.bound, before);
    ASSERT_FALSE(result.strategies.empty());
    EXPECT_LE(static_cast<double>(result.cost), 1.02 * static_cast<double>(least)) << small;
    before = result.bound;
  }
}

TEST(Strategy, TheLimitDecides) {
  StrategyProblem problem;
  problem.nodes = {{0, 2, {1, 10}, {8, 4}}, {1, 3, {1, 10}, {8, 4}}};
  EXPECT_EQ(choose_strategies(problem, {}).cost, 2);
  problem.usage_limit = 12;
  EXPECT_EQ(choose_strategies(problem, {}).cost, 11);
  problem.usage_limit = 8;
  EXPECT_EQ(choose_strategies(problem, {}).cost, 20);
  problem.usage_limit = 7;
  EXPECT_EQ(choose_strategies(problem, {}).outcome, Outcome::kInfeasible);
}

TEST(Strategy, NothingToChooseCostsNothing) {
  const StrategyResult result = choose_strategies({}, {});
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.cost, 0);
  EXPECT_EQ(result.gap(), 0);
}

}  // namespace
}  // namespace stowage::testing
