// Residents that wait on the host: fetched before the first use, written back after the last write, and nothing wrong
// passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "support/broken_plan.h"
#include "support/builder.h"
#include "support/naive_checker.h"
#include "support/random_graph.h"
#include "support/random_plan.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// p is read by op 0, and written by op 1, which makes y; q is only read, by op 2; r stays.
//
// step   0             1      2      3                   4             5
//        swap_in p<1   run 0  run 1  swap_out p<4        swap_in q<5   run 2
// p      [0, 4) at 0
// q                                                      [4, 6) at 0
Example example() {
  GraphBuilder g;
  const int p = g.resident(4), q = g.resident(4), r = g.resident(4);
  const int x = g.buffer(4), y = g.returned(4), z = g.returned(4);
  g.op({p}, {}, {x});
  g.op({x}, {p}, {y});
  g.op({q, r}, {}, {z});
  Graph graph = g.build();
  for (const int id : {p, q}) graph.buffers[static_cast<std::size_t>(id)].leaves = true;
  validate(graph);
  seal(graph);
  Plan plan{graph.sha256, 1,  16, {swap_in(p, 1), run(0), run(1), swap_out(p, 4), swap_in(q, 5), run(2)},
            {},           {}, {}, {}};
  plan.placements = {place(p, 0, 4, 0), place(x, 1, 3, 4), place(y, 2, 6, 8), place(q, 4, 6, 0), place(z, 5, 6, 12)};
  plan.away = {BufferId(p), BufferId(q)};
  return {graph, plan};
}

const BrokenPlan kBroken[] = {
    {"FetchedAfterItsUse", 2, "has no placement that covers the step",
     [](Plan& p) {
       std::swap(p.steps[4], p.steps[5]);
       p.steps[5].until = 6;
       p.placements[3].from = 5;
       p.placements[4].from = 4;
     }},
    {"NeverFetched", 2, "has no placement that covers the step",
     [](Plan& p) { p.placements.erase(p.placements.begin() + 3), p.steps[4] = swap_out(4, 5); }},
    {"UsedWhileItArrives", 4, "is being copied in until step 2", [](Plan& p) { p.steps[0].until = 2; }},
    {"NeverWrittenBack", 5, "the host ends with version 0", [](Plan& p) { p.steps[3] = swap_out(4, 4); }},
    {"WrittenBackBeforeTheWrite", 5, "the host ends with version 0",
     [](Plan& p) {
       std::swap(p.steps[2], p.steps[3]);
       p.steps[2].until = 3;
       p.placements[1].to = p.placements[0].to = 4;
       p.placements[2].from = 3;
     }},
    {"WrittenWhileItLeaves", 4, "is written while it is copied out",
     [](Plan& p) {
       std::swap(p.steps[2], p.steps[3]);
       p.steps[2].until = 4;
       p.placements[1].to = p.placements[0].to = 4;
       p.placements[2].from = 3;
     }},
    {"TwoResidentsAtOneAddress", 6, "overlap", [](Plan& p) { p.placements[3].offset = 8; }},
    {"BeyondTheArena", 6, "arena", [](Plan& p) { p.placements[3].offset = 16; }},
    {"PlacedWithoutFetch", 3, "neither creates it nor swaps it in", [](Plan& p) { p.placements[3].from = 3; }},
    {"StayingResidentPlaced", 3, "is resident", [](Plan& p) { p.away.pop_back(); }},
    {"StayingResidentFetched", 4, "a resident",
     [](Plan& p) { p.away.pop_back(), p.placements.erase(p.placements.begin() + 3); }},
    {"MayNotLeave", 3, "may not leave", [](Plan& p) { p.away.emplace_back(2); }},
    {"NoResident", 3, "is no resident", [](Plan& p) { p.away.emplace_back(3); }},
    {"Twice", 3, "is listed twice", [](Plan& p) { p.away.emplace_back(1); }},
    {"OutOfRange", 3, "out of range", [](Plan& p) { p.away.emplace_back(9); }},
};

TEST(CheckAway, ExampleIsValid) {
  const auto [graph, plan] = example();
  const CheckReport report = check(graph, plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(naive_peak(graph, plan), report.peak_bytes);
}

TEST(CheckAway, EachBrokenRuleIsNamed) { expect_each_is_named(example(), kBroken); }

TEST(CheckAway, FilesKeepWhoMayLeaveAndWhoIsAway) {
  const auto [graph, plan] = example();
  const Graph again = parse_graph(to_json(graph), "graph");
  EXPECT_EQ(to_json(again), to_json(graph));
  EXPECT_TRUE(again.buffers[0].leaves && again.buffers[1].leaves && !again.buffers[2].leaves);
  const Plan same = parse_plan(to_json(plan), "plan");
  EXPECT_EQ(to_json(same), to_json(plan));
  EXPECT_EQ(same.away, plan.away);
  Graph wrong = graph;
  wrong.buffers[3].leaves = true;
  EXPECT_THROW(validate(wrong), InvalidGraph);
}

TEST(CheckAway, AgreesWithNaiveTwinOnMutatedPlans) {
  int away = 0, written_back = 0, broken = 0;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 1500; ++seed) {
    SCOPED_TRACE("STOWAGE_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = static_cast<int>(draw(random, 1, 8));
    options.residents = static_cast<int>(draw(random, 1, 4));
    options.leaving = 70;
    const Graph graph = random_graph(random, options);
    Plan plan = simple_plan(graph);
    for (int i = 0; i < 12; ++i) {
      const Plan next = mutate(graph, plan, random);
      const CheckReport report = check(graph, next);
      ASSERT_EQ(report.valid ? std::optional(report.peak_bytes) : std::nullopt, naive_peak(graph, next))
          << report.message << "\n"
          << to_json(graph) << to_json(next);
      broken += !next.away.empty() && !report.valid;
      if (!report.valid) continue;
      plan = next;
      away += !plan.away.empty();
      for (const BufferId b : plan.away)
        written_back +=
            std::ranges::any_of(graph.ops, [&](const Op& op) { return std::ranges::count(op.writes, b) > 0; });
    }
  }
  EXPECT_GT(away, 1000);
  EXPECT_GT(written_back, 100);
  EXPECT_GT(broken, 1000);
}

}  // namespace
}  // namespace stowage::testing
