// Rule 4: what must hold while a buffer is copied to the host and back.
#include <gtest/gtest.h>

#include "stowage/check.h"
#include "support/broken_plan.h"
#include "support/builder.h"
#include "support/naive_checker.h"

namespace stowage::testing {
namespace {

// op 0 makes x, op 1 makes y, op 2 eats y, op 3 writes x and makes the returned buffer.
//
// step   0      1               2      3      4              5        6
//        run 0  swap_out x < 3  run 1  run 2  swap_in x < 6  run 4    run 3
// x      [0, 4) at 0                          [4, 7) at 4
Example swapping_example() {
  GraphBuilder g;
  const int x = g.buffer(4);
  const int y = g.buffer(4);
  const int out = g.returned(4);
  g.op({}, {}, {x});
  g.op({}, {}, {y});
  g.op({y}, {}, {});
  g.op({}, {x}, {out});
  g.op({}, {}, {});
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 12, {run(0), swap_out(x, 3), run(1), run(2), swap_in(x, 6), run(4), run(3)}, {}, {}, {}};
  plan.placements = {place(x, 0, 3, 0), place(y, 2, 4, 8), place(x, 4, 7, 4), place(out, 6, 7, 0)};
  return {graph, plan};
}

const BrokenPlan kBrokenSwaps[] = {
    {"OutIsNotCovered", 4, "ends before the copy is complete", [](Plan& p) { p.placements[0].to = 2; }},
    {"OutWithoutPlacement", 4, "no placement covers the step", [](Plan& p) { p.steps[1].buffer = BufferId(1); }},
    {"OutOutOfRange", 4, "buffer 9, which is out of range", [](Plan& p) { p.steps[1].buffer = BufferId(9); }},
    {"OutUntilItself", 4, "until 1 is not in (1, 7]", [](Plan& p) { p.steps[1].until = 1; }},
    {"OutUntilBeyondTheEnd", 4, "until 8 is not in (1, 7]", [](Plan& p) { p.steps[1].until = 8; }},
    {"InUntilItself", 4, "until 4 is not in (4, 7]", [](Plan& p) { p.steps[4].until = 4; }},
    {"InNeverSwappedOut", 4, "it was never swapped out", [](Plan& p) { p.steps[1] = run(4); }},
    {"InBeginsNoPlacement", 4, "no placement begins at the step",
     [](Plan& p) {
       p.placements[0].to = 7;
       p.placements.erase(p.placements.begin() + 2);
       p.placements[2].offset = 4;
     }},
    {"InPlacementEndsTooEarly", 4, "its placement ends before the copy is complete",
     [](Plan& p) { p.placements[2].to = 5; }},
    {"OpBeforeUntil", 4, "is being copied in until step 7", [](Plan& p) { p.steps[4].until = 7; }},
    {"SwapOfNothing", 3, "neither creates it nor swaps it in", [](Plan& p) { p.steps[4].buffer = BufferId(1); }},
};

TEST(CheckSwap, ExampleIsValid) {
  const auto [graph, plan] = swapping_example();
  const CheckReport report = check(graph, plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(report.peak_bytes, 8);
  EXPECT_EQ(naive_peak(graph, plan), 8);
}

TEST(CheckSwap, EachBrokenRuleIsNamed) { expect_each_is_named(swapping_example(), kBrokenSwaps); }

// x is made and written in place while its first version leaves for the host.
TEST(CheckSwap, WriteWhileLeavingIsRefused) {
  GraphBuilder g;
  const int x = g.returned(4);
  g.op({}, {}, {x});
  g.op({}, {x}, {});
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 4, {run(0), swap_out(x, 3), run(1)}, {place(x, 0, 3, 0)}, {}, {}};
  CheckReport report = check(graph, plan);
  EXPECT_EQ(report.rule, 4);
  EXPECT_NE(report.message.find("is written while it is copied out until step 3"), std::string::npos) << report.message;
  plan.steps[1].until = 2;
  EXPECT_TRUE(check(graph, plan).valid);
}

TEST(CheckSwap, TheLongerOfTwoCopiesCounts) {
  GraphBuilder g;
  const int x = g.returned(4);
  g.op({}, {}, {x});
  g.op({}, {x}, {});
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 4, {run(0), swap_out(x, 4), swap_out(x, 3), run(1)}, {place(x, 0, 4, 0)}, {}, {}};
  EXPECT_EQ(check(graph, plan).rule, 4);
  EXPECT_FALSE(naive_peak(graph, plan).has_value());
  plan.steps[1].until = 3;
  EXPECT_TRUE(check(graph, plan).valid);
}

TEST(CheckSwap, NothingLeavesWhileItArrives) {
  GraphBuilder g;
  const int x = g.buffer(4);
  g.op({}, {}, {x});
  const Graph graph = g.build();
  Plan plan{graph.sha256,
            1,
            4,
            {run(0), swap_out(x, 2), swap_in(x, 4), swap_out(x, 4)},
            {place(x, 0, 2, 0), place(x, 2, 4, 0)},
            {},
            {}};
  EXPECT_EQ(check(graph, plan).rule, 4);
  EXPECT_FALSE(naive_peak(graph, plan).has_value());
  plan.steps[2].until = 3;
  EXPECT_TRUE(check(graph, plan).valid) << check(graph, plan).message;
}

// The host keeps the version that left, not what was written since.
TEST(CheckSwap, OldVersionComesBackOld) {
  GraphBuilder g;
  const int x = g.returned(4);
  g.op({}, {}, {x});
  g.op({}, {x}, {});
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 4, {run(0), swap_out(x, 2), run(1), swap_in(x, 4)}, {place(x, 0, 3, 0), place(x, 3, 4, 0)},
            {},           {}};
  CheckReport report = check(graph, plan);
  EXPECT_EQ(report.rule, 5);
  EXPECT_NE(report.message.find("ends with version 1, the final one is 2"), std::string::npos) << report.message;
}

TEST(CheckSwap, ReadWhileLeavingIsFine) {
  GraphBuilder g;
  const int x = g.buffer(4);
  g.op({}, {}, {x});
  g.op({x}, {}, {});
  g.op({x}, {}, {});
  const Graph graph = g.build();
  const Plan plan{graph.sha256,
                  1,
                  4,
                  {run(0), swap_out(x, 3), run(1), swap_in(x, 4), run(2)},
                  {place(x, 0, 3, 0), place(x, 3, 5, 0)},
                  {},
                  {}};
  EXPECT_TRUE(check(graph, plan).valid) << check(graph, plan).message;
}

TEST(CheckSwap, ResidentsDoNotSwap) {
  GraphBuilder g;
  const int w = g.resident(4);
  g.op({w}, {}, {});
  const Graph graph = g.build();
  const Plan plan{graph.sha256, 1, 4, {run(0), swap_out(w, 2)}, {}, {}, {}};
  EXPECT_EQ(check(graph, plan).rule, 4);
}

}  // namespace
}  // namespace stowage::testing
