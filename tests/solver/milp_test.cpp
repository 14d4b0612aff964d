// solve(): what it answers, how limits show, and random small problems against all their points.
#include "solver/milp.h"

#include <gtest/gtest.h>

#include <stdlib.h>

#include <cmath>
#include <optional>
#include <random>

#include "solver/solved_programs.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// Maximise value under several capacities.
MilpProblem knapsack(std::mt19937_64& random, int items, int capacities) {
  MilpProblem p;
  for (int j = 0; j < items; ++j) p.add_binary(-static_cast<double>(draw(random, 50, 100)));
  for (int i = 0; i < capacities; ++i) {
    std::vector<Term> row;
    double sum = 0;
    for (int j = 0; j < items; ++j) {
      row.push_back({j, static_cast<double>(draw(random, 1, 60))});
      sum += row.back().coefficient;
    }
    p.add_row(-kInfinity, std::floor(sum / 2), row);
  }
  return p;
}

TEST(Milp, TakesTheBestOfAKnapsack) {
  MilpProblem p;
  const int a = p.add_binary(-5), b = p.add_binary(-4), c = p.add_binary(-3);
  p.add_row(-kInfinity, 5, {{a, 2}, {b, 3}, {c, 1}});
  p.add_row(-kInfinity, 11, {{a, 4}, {b, 1}, {c, 2}});
  p.add_row(-kInfinity, 8, {{a, 3}, {b, 4}, {c, 2}});
  const MilpResult r = solve(p, {});
  EXPECT_EQ(r.outcome, Outcome::kOptimal);
  EXPECT_DOUBLE_EQ(r.objective, -9);
  EXPECT_NEAR(r.bound, -9, 1e-6);
  EXPECT_EQ(r.values, (std::vector<double>{1, 1, 0}));
}

TEST(Milp, SolvesLinearProgramsToo) {
  MilpProblem p;
  const int x = p.add_column(-1, 0, 10, false), y = p.add_column(-2, 0, 10, false);
  p.add_row(-kInfinity, 4, {{x, 1}, {y, 1}, {x, 1}});  // 2x + y: a column may appear twice
  const MilpResult r = solve(p, {});
  EXPECT_EQ(r.outcome, Outcome::kOptimal);
  EXPECT_NEAR(r.objective, -8, 1e-9);
  EXPECT_NEAR(r.bound, -8, 1e-9);
}

TEST(Milp, AProblemWithoutRowsIsSolved) {
  MilpProblem p;
  p.add_column(1, -3, 5, true);
  const MilpResult r = solve(p, {});
  EXPECT_EQ(r.outcome, Outcome::kOptimal);
  EXPECT_DOUBLE_EQ(r.objective, -3);
}

TEST(Milp, SaysInfeasible) {
  MilpProblem p;
  const int x = p.add_binary(1), y = p.add_binary(1);
  p.add_row(3, kInfinity, {{x, 1}, {y, 1}});
  const MilpResult r = solve(p, {});
  EXPECT_EQ(r.outcome, Outcome::kInfeasible);
  EXPECT_TRUE(r.values.empty());
}

TEST(Milp, AnUnboundedProblemIsAnError) {
  MilpProblem p;
  p.add_column(-1, 0, kInfinity, true);
  EXPECT_THROW(solve(p, {}), Error);
}

TEST(Milp, AMalformedProblemIsAnError) {
  MilpProblem p;
  p.add_binary(1);
  p.add_row(0, 1, {{7, 1.0}});
  EXPECT_THROW(solve(p, {}), Error);
  MilpProblem q;
  q.add_binary(1);
  MilpOptions options;
  options.start = {0, 1};
  EXPECT_THROW(solve(q, options), Error);
}

TEST(Milp, ALimitKeepsTheStartAndSaysSo) {
  std::mt19937_64 random(first_seed());
  const MilpProblem p = knapsack(random, 60, 6);
  MilpOptions options;
  options.start.assign(60, 0);
  options.node_limit = 1;
  const MilpResult r = solve(p, options);
  EXPECT_EQ(r.outcome, Outcome::kFeasible);
  EXPECT_LE(r.objective, 0);
  EXPECT_LT(r.bound, r.objective);
}

TEST(Milp, IterationLimitStopsAndRepeats) {
  std::mt19937_64 random(first_seed());
  const MilpProblem p = knapsack(random, 60, 6);
  MilpOptions options;
  options.iteration_limit = 300;
  const MilpResult a = solve(p, options), b = solve(p, options);
  EXPECT_EQ(a.outcome, Outcome::kFeasible);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.nodes, b.nodes);
  EXPECT_EQ(a.bound, b.bound);
}

TEST(SolvedPrograms, AnswersAgainWhatIsSettled) {
  std::mt19937_64 random(first_seed());
  const MilpProblem p = knapsack(random, 12, 2), q = knapsack(random, 12, 2);
  SolvedPrograms solved;
  const MilpResult a = solved.solve(p, {}), b = solved.solve(q, {}), c = solved.solve(p, {});
  EXPECT_EQ(solved.kept(), 2U);
  EXPECT_EQ(c.values, a.values);
  EXPECT_EQ(c.bound, a.bound);
  EXPECT_EQ(b.objective, solve(q, {}).objective);
  MilpOptions looser;
  looser.relative_gap = 0.5;
  solved.solve(p, looser);
  EXPECT_EQ(solved.kept(), 3U);
}

TEST(SolvedPrograms, AsksAnewWhereAClockHasCutShort) {
  std::mt19937_64 random(first_seed());
  const MilpProblem p = knapsack(random, 60, 6);
  MilpOptions options;
  options.should_stop = [] { return true; };
  SolvedPrograms solved;
  EXPECT_NE(solved.solve(p, options).outcome, Outcome::kOptimal);
  EXPECT_EQ(solved.kept(), 0U);
  MilpOptions counted;
  counted.iteration_limit = 300;
  EXPECT_EQ(solved.solve(p, counted).outcome, Outcome::kFeasible);
  EXPECT_EQ(solved.kept(), 1U);
}

TEST(Milp, StopsWhenAsked) {
  std::mt19937_64 random(first_seed());
  const MilpProblem p = knapsack(random, 60, 6);
  MilpOptions options;
  options.should_stop = [] { return true; };
  EXPECT_NE(solve(p, options).outcome, Outcome::kOptimal);
}

TEST(Milp, PrintsNothing) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  std::mt19937_64 random(first_seed());
  solve(knapsack(random, 20, 2), {});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Milp, AMissingLibrarySaysWhatToInstall) {
  MilpProblem p;
  p.add_binary(1);
  MilpOptions options;
  options.library = "/nowhere/libhighs.so.1";
  try {
    solve(p, options);
    FAIL() << "no such library";
  } catch (const SolverMissing& missing) {
    EXPECT_NE(std::string(missing.what()).find("pip install 'highspy>=1.15,<2'"), std::string::npos) << missing.what();
  }
}

TEST(Milp, ALibraryOfAnotherKindIsRefused) {
  MilpProblem p;
  p.add_binary(1);
  ::setenv("STOWAGE_HIGHS", "libm.so.6", 1);
  try {
    solve(p, {});
    ADD_FAILURE() << "libm is no solver";
  } catch (const SolverMissing& missing) {
    EXPECT_NE(std::string(missing.what()).find("Highs_create"), std::string::npos) << missing.what();
  }
  ::unsetenv("STOWAGE_HIGHS");
}

// Small integers in a box: all points are tried.
struct Exhausted {
  std::optional<double> best;
};

Exhausted try_all(const MilpProblem& p) {
  Exhausted result;
  std::vector<double> x(p.lower);
  for (bool more = true; more;) {
    bool fits = true;
    for (int i = 0; i < p.rows() && fits; ++i) {
      double sum = 0;
      for (int k = p.row_start[i]; k < p.row_start[i + 1]; ++k) sum += p.entry_value[k] * x[p.entry_column[k]];
      fits = sum >= p.row_lower[i] && sum <= p.row_upper[i];
    }
    double cost = 0;
    for (int j = 0; j < p.columns(); ++j) cost += p.cost[j] * x[j];
    if (fits && (!result.best || cost < *result.best)) result.best = cost;
    more = false;
    for (int j = 0; j < p.columns() && !more; ++j) {
      more = x[j] < p.upper[j];
      x[j] = more ? x[j] + 1 : p.lower[j];
    }
  }
  return result;
}

TEST(Milp, RandomSmallProblemsEqualTheBestOfAllTheirPoints) {
  int infeasible = 0;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    MilpProblem p;
    const auto columns = draw(random, 1, 6), rows = draw(random, 0, 4);
    const double unit = chance(random, 50) ? std::exp2(static_cast<double>(draw(random, 1, 60))) : 1;  // of costs
    for (int j = 0; j < columns; ++j) {
      const auto lower = static_cast<double>(draw(random, -2, 1));
      p.add_column(unit * static_cast<double>(draw(random, -9, 9)), lower,
                   lower + static_cast<double>(draw(random, 0, 3)), true);
    }
    for (int r = 0; r < rows; ++r) {
      std::vector<Term> terms;
      for (int j = 0; j < columns; ++j)
        if (chance(random, 70)) terms.push_back({j, static_cast<double>(draw(random, -5, 5))});
      const auto least = static_cast<double>(draw(random, -8, 8));
      p.add_row(chance(random, 30) ? -kInfinity : least,
                chance(random, 30) ? kInfinity : least + static_cast<double>(draw(random, 0, 6)), terms);
    }
    const Exhausted all = try_all(p);
    const MilpResult r = solve(p, {});
    ASSERT_EQ(r.outcome, all.best ? Outcome::kOptimal : Outcome::kInfeasible);
    infeasible += !all.best;
    if (all.best) {
      EXPECT_NEAR(r.objective, *all.best, 1e-6 * unit);
      EXPECT_NEAR(r.bound, *all.best, 1e-5 * unit);
    }
  }
  EXPECT_GT(infeasible, 5);
}

}  // namespace
}  // namespace stowage::testing
