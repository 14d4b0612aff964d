// Each rule of a valid plan, broken in turn on a small valid one.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "stowage/check.h"
#include "support/builder.h"
#include "support/naive_checker.h"

namespace stowage::testing {
namespace {

// step   0           1           2                3                4               5
// op     make a      make b      write b, make c  read a, make d   update weight   make out (returned)
//        (rng)       (rng)       (scratch 8)                       (effect)        (effect, after op 3)
Graph example_graph() {
  GraphBuilder g(4);
  const int weight = g.resident(16);
  const int a = g.buffer(8);
  const int b = g.buffer(8);
  const int c = g.buffer(4);
  const int d = g.buffer(8);
  const int out = g.returned(4);
  const int none = g.buffer(0);
  g.op({weight}, {}, {a}).rng = true;
  g.op({a}, {}, {b}).rng = true;
  g.op({}, {b}, {c, none}).scratch.push_back({8, 0, 1});
  g.op({a}, {}, {d});
  g.op({d}, {weight}, {}).effect = true;
  Op& last = g.op({b, c}, {}, {out});
  last.effect = true;
  last.after.emplace_back(3);
  return g.build();
}

// buffers: 0 weight (resident), 1 a, 2 b, 3 c, 4 d, 5 out, 6 none (0 bytes)
Plan example_plan(const Graph& graph) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = 4;
  plan.arena_bytes = 28;
  for (int k = 0; k < 6; ++k) plan.steps.push_back(run(k));
  plan.placements = {place(1, 0, 4, 0),  place(2, 1, 6, 8),  place(3, 2, 6, 16),
                     place(6, 2, 3, 28), place(4, 3, 5, 20), place(5, 5, 6, 0)};
  plan.scratch = {{2, 0, 20}};
  return plan;
}

struct RuleCase {
  const char* name;
  int rule;
  const char* message;  // a part of it
  std::function<void(Plan&)> damage;
};

// Moves the step at `from` to the place `to`, with the times that hang on it.
void move_step(Plan& plan, int from, int to) {
  const Step step = plan.steps[static_cast<std::size_t>(from)];
  plan.steps.erase(plan.steps.begin() + from);
  plan.steps.insert(plan.steps.begin() + to, step);
}

const RuleCase kCases[] = {
    {"OtherGraph", 0, "another graph", [](Plan& p) { p.graph_sha256 = std::string(64, '0'); }},
    {"OpNeverRuns", 1, "op 1 'op1' never runs", [](Plan& p) { p.steps.erase(p.steps.begin() + 1); }},
    {"OpOutOfRange", 1, "step 6 runs op 9, which is out of range", [](Plan& p) { p.steps.push_back(run(9)); }},
    {"OpNegative", 1, "out of range", [](Plan& p) { p.steps.push_back(run(-1)); }},
    {"RngOrder", 1, "rng ops keep", [](Plan& p) { move_step(p, 1, 0); }},
    {"EffectOrder", 1, "effect ops keep", [](Plan& p) { move_step(p, 5, 4); }},
    {"EffectTwice", 1, "again, which has the trait 'effect'", [](Plan& p) { p.steps.push_back(run(4)); }},
    {"AfterIsEarlier", 1, "which it comes after", [](Plan& p) { move_step(p, 5, 2); }},
    {"ReadWithoutPlacement", 2, "step 3 runs op 3 'op3': buffer 1 'b1' has no placement",
     [](Plan& p) { p.placements[0].to = 3; }},
    {"CreateWithoutPlacement", 2, "buffer 4 'b4' has no placement",
     [](Plan& p) { p.placements.erase(p.placements.begin() + 4); }},
    {"StaleVersion", 2, "buffer 2 'b2' holds version 1, the op sees version 2",
     [](Plan& p) {
       p.steps.insert(p.steps.begin() + 5, run(1));  // makes b anew, without the write of op 2
       for (Placement& x : p.placements) x.to += x.to > 5;
       p.placements[0].to = 6;
       p.placements[5] = place(5, 6, 7, 24);
     }},
    {"ResidentUpdated", 2, "buffer 0 'b0' holds version 1, the op sees version 0",
     [](Plan& p) {
       p.steps.push_back(run(0));
       for (Placement& x : p.placements) x.to += x.to > 5;
       p.placements.push_back(place(1, 6, 7, 20));
     }},
    {"PlacementWithoutContent", 3, "neither creates it nor swaps it in", [](Plan& p) { p.placements[4].from = 2; }},
    {"PlacementOfResident", 3, "is resident", [](Plan& p) { p.placements.push_back(place(0, 0, 1, 0)); }},
    {"PlacementOutOfRange", 3, "buffer 7 is out of range", [](Plan& p) { p.placements.push_back(place(7, 0, 1, 0)); }},
    {"PlacementEmpty", 3, "are not inside", [](Plan& p) { p.placements[4].to = 3; }},
    {"PlacementBackward", 3, "are not inside", [](Plan& p) { p.placements[4].to = -5; }},
    {"PlacementBeyondTheEnd", 3, "are not inside", [](Plan& p) { p.placements[5].to = 7; }},
    {"TwoPlacements", 3, "two placements", [](Plan& p) { p.placements.push_back(p.placements[4]); }},
    {"ReturnedEndsEarly", 5, "no placement that covers the last step",
     [](Plan& p) {
       p.steps.push_back(run(3));
       p.placements[0].to = 7;
       p.placements[5].offset = 24;
       p.placements.push_back(place(4, 6, 7, 8));
     }},
    {"Overlap", 6,
     "placement 0 of buffer 1 'b1' at [0, 8) and placement 1 of buffer 2 'b2' at [4, 12) overlap at step 1",
     [](Plan& p) { p.placements[1].offset = 4; }},
    {"OverlapWithScratch", 6, "scratch 0 of step 2", [](Plan& p) { p.scratch[0].offset = 12; }},
    {"OutsideArena", 6, "is not inside the arena of 27 bytes", [](Plan& p) { p.arena_bytes = 27; }},
    {"NegativeOffset", 6, "is not inside the arena", [](Plan& p) { p.placements[2].offset = -4; }},
    {"HugeOffset", 6, "is not inside the arena", [](Plan& p) { p.placements[2].offset = INT64_MAX - 3; }},
    {"NegativeArena", 6, "arena_bytes is -1", [](Plan& p) { p.arena_bytes = -1; }},
    {"SmallestArena", 6, "arena_bytes is", [](Plan& p) { p.arena_bytes = INT64_MIN; }},
    {"Misaligned", 6, "offset 22 is no multiple of 4",
     [](Plan& p) { p.placements[4].offset = 22, p.arena_bytes = 64; }},
    {"OtherAlign", 6, "align 8", [](Plan& p) { p.align = 8; }},
    {"AlignZero", 6, "align 0", [](Plan& p) { p.align = 0; }},
    {"ScratchMissing", 6, "step 2: scratch 0 of op 'op2' has no address", [](Plan& p) { p.scratch.clear(); }},
    {"ScratchTwice", 6, "twice", [](Plan& p) { p.scratch.push_back(p.scratch[0]); }},
    {"ScratchOfOtherStep", 6, "scratch 0 of step 0", [](Plan& p) { p.scratch.push_back({0, 0, 0}); }},
    {"ScratchOutsideArena", 6, "is not inside", [](Plan& p) { p.scratch[0].offset = 24; }},
};

TEST(CheckRules, ExampleIsValid) {
  const Graph graph = example_graph();
  const CheckReport report = check(graph, example_plan(graph));
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(report.peak_bytes, 28);
  EXPECT_EQ(naive_peak(graph, example_plan(graph)), 28);
}

TEST(CheckRules, EachBrokenRuleIsNamed) {
  const Graph graph = example_graph();
  for (const RuleCase& broken : kCases) {
    SCOPED_TRACE(broken.name);
    Plan plan = example_plan(graph);
    broken.damage(plan);
    const CheckReport report = check(graph, plan);
    EXPECT_FALSE(report.valid);
    EXPECT_EQ(report.rule, broken.rule) << report.message;
    EXPECT_NE(report.message.find(broken.message), std::string::npos) << report.message;
    EXPECT_EQ(report.peak_bytes, 0);
    EXPECT_FALSE(naive_peak(graph, plan).has_value());
  }
}

TEST(CheckRules, EmptyGraphHasEmptyPlan) {
  const Graph graph = GraphBuilder().build();
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = 1;
  const CheckReport report = check(graph, plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(report.peak_bytes, 0);
}

TEST(CheckRules, ZeroByteBuffersTakeNoSpace) {
  GraphBuilder g;
  const int a = g.buffer(10);
  const int none = g.buffer(0);
  g.op({}, {}, {a});
  g.op({a}, {}, {none});
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 10, {run(0), run(1)}, {place(a, 0, 2, 0), place(none, 1, 2, 5)}, {}, {}};
  EXPECT_TRUE(check(graph, plan).valid);
  plan.placements[1].offset = 10;
  EXPECT_TRUE(check(graph, plan).valid);
  plan.placements[1].offset = 11;
  EXPECT_EQ(check(graph, plan).rule, 6);
}

// A chain with an in-place op: make x (op 0), x += 1 in place (op 1), and a late reader (op 3) of the result.
struct ChainExample {
  Graph graph;
  Plan plan;
};

ChainExample recomputed_chain() {
  GraphBuilder g;
  const int input = g.resident(4);
  const int x = g.buffer(8);
  const int y = g.buffer(4);
  const int out = g.returned(4);
  g.op({input}, {}, {x});
  g.op({}, {x}, {});
  g.op({x}, {}, {y});
  g.op({x, y}, {}, {out});
  const Graph graph = g.build();
  // x is dropped after op 2; both of its ops run again on a fresh placement.
  Plan plan{graph.sha256, 1, 20, {run(0), run(1), run(2), run(0), run(1), run(3)}, {}, {}, {}};
  plan.placements = {place(x, 0, 3, 0), place(y, 2, 6, 8), place(x, 3, 6, 12), place(out, 5, 6, 0)};
  return {graph, plan};
}

TEST(CheckRecompute, ChainRunsAgainOnAFreshPlacement) {
  const auto [graph, plan] = recomputed_chain();
  const CheckReport report = check(graph, plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(report.peak_bytes, 16);
}

TEST(CheckRecompute, WhatRunsOnceDoesNotRunAgain) {
  for (const std::size_t op : {0U, 1U}) {
    auto [graph, plan] = recomputed_chain();
    graph.ops[op].once = true;
    const CheckReport report = check(graph, plan);
    EXPECT_EQ(report.rule, 1);
    EXPECT_NE(report.message.find("again, which has the trait 'once'"), std::string::npos) << report.message;
    EXPECT_FALSE(naive_peak(graph, plan).has_value());
  }
}

TEST(CheckRecompute, ChainRunsAgainInPlace) {
  auto [graph, plan] = recomputed_chain();
  plan.placements[0].to = 6;
  plan.placements.erase(plan.placements.begin() + 2);
  plan.placements[2].offset = 12;
  EXPECT_TRUE(check(graph, plan).valid) << check(graph, plan).message;
}

TEST(CheckRecompute, HalfAChainIsStale) {
  auto [graph, plan] = recomputed_chain();
  plan.steps.erase(plan.steps.begin() + 4);
  plan.placements[1].to = plan.placements[2].to = plan.placements[3].to = 5;
  plan.placements[3].from = 4;
  const CheckReport report = check(graph, plan);
  EXPECT_EQ(report.rule, 2);
  EXPECT_NE(report.message.find("holds version 1, the op sees version 2"), std::string::npos) << report.message;
}

TEST(CheckRecompute, InPlaceOpDoesNotRunTwiceOnOnePlacement) {
  auto [graph, plan] = recomputed_chain();
  plan.steps.insert(plan.steps.begin() + 2, run(1));
  for (Placement& p : plan.placements) {
    p.from += p.from >= 2;
    p.to += p.to > 2;
  }
  const CheckReport report = check(graph, plan);
  EXPECT_EQ(report.rule, 2);
  EXPECT_NE(report.message.find("holds version 2, the op sees version 1"), std::string::npos) << report.message;
}

}  // namespace
}  // namespace stowage::testing
