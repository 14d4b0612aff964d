// plan() with results that lie over inputs which die there, on graphs small enough to plan by hand.
#include <gtest/gtest.h>

#include "stowage/check.h"
#include "stowage/planner.h"
#include "support/builder.h"

namespace stowage::testing {
namespace {

void may_reuse(Op& op, int read, int created) { op.takeover.push_back({BufferId(read), BufferId(created)}); }

std::int64_t offset_of(const Plan& plan, int buffer) {
  for (const Placement& p : plan.placements)
    if (p.buffer == BufferId(buffer)) return p.offset;
  return -1;
}

PlanResult without(const Graph& graph) {
  PlanOptions options;
  options.takeover = false;
  return plan(graph, options);
}

TEST(PlanInPlaceReuse, TwoOpsShareOneAddress) {
  GraphBuilder g(64);
  const int a = g.buffer(64), b = g.returned(64);
  g.op({}, {}, {a});
  may_reuse(g.op({a}, {}, {b}), a, b);
  const Graph graph = g.build();
  const PlanResult result = plan(graph, {});
  EXPECT_EQ(result.peak_bytes, 64);
  EXPECT_EQ(result.plan->arena_bytes, 64);
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.plan->placements[0].to, 2);
  EXPECT_EQ(result.plan->placements[1].from, 1);
  EXPECT_EQ(without(graph).peak_bytes, 128);
  EXPECT_EQ(without(graph).plan->arena_bytes, 128);
  EXPECT_EQ(without(graph).lower_bound_bytes, 64);
}

TEST(PlanInPlaceReuse, AChainStaysInPlace) {
  GraphBuilder g;
  int last = g.buffer(10);
  g.op({}, {}, {last});
  for (int i = 0; i < 20; ++i) {
    const int next = i == 19 ? g.returned(10) : g.buffer(10);
    may_reuse(g.op({last}, {}, {next}), last, next);
    last = next;
  }
  const PlanResult result = plan(g.build(), {});
  EXPECT_EQ(result.plan->arena_bytes, 10);
  for (const Placement& p : result.plan->placements) EXPECT_EQ(p.offset, 0);
}

TEST(PlanInPlaceReuse, TheOrderMakesTheInputDie) {
  // r is read by an elementwise op and by one that leaves little. Program order runs the elementwise one first.
  GraphBuilder g;
  const int r = g.buffer(10), c = g.buffer(10), small = g.buffer(1), out = g.returned(1);
  g.op({}, {}, {r});
  may_reuse(g.op({r}, {}, {c}), r, c);
  g.op({r}, {}, {small});
  g.op({c, small}, {}, {out});
  const Graph graph = g.build();
  const PlanResult result = plan(graph, {});
  EXPECT_EQ(result.peak_bytes, 12);  // the last op; r and `small`, then c and `small` take 11
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(offset_of(*result.plan, r), offset_of(*result.plan, c));
  EXPECT_EQ(without(graph).peak_bytes, 21);
  PlanOptions options;
  options.keep_order = true;
  EXPECT_EQ(plan(graph, options).peak_bytes, 21);
}

TEST(PlanInPlaceReuse, OneInputIsReusedOnce) {
  GraphBuilder g;
  const int r = g.buffer(10), c = g.buffer(10), d = g.buffer(10), out = g.returned(1);
  g.op({}, {}, {r});
  Op& op = g.op({r}, {}, {c, d});
  may_reuse(op, r, c);
  may_reuse(op, r, d);
  g.op({c, d}, {}, {out});
  const PlanResult result = plan(g.build(), {});
  EXPECT_EQ(result.peak_bytes, 21);
  EXPECT_EQ(result.lower_bound_bytes, 21);
}

TEST(PlanInPlaceReuse, WhatIsReturnedIsNotReused) {
  GraphBuilder g;
  const int r = g.returned(10), c = g.returned(10);
  g.op({}, {}, {r});
  may_reuse(g.op({r}, {}, {c}), r, c);
  EXPECT_EQ(plan(g.build(), {}).peak_bytes, 20);
}

TEST(PlanInPlaceReuse, ASmallerBufferLeavesTheRestOfTheLargerFree) {
  // Live beside c, in what c leaves of r: 10, where c as wide as r needs 13 or 16, and 14 are needed without reuse
  for (const int beside : {3, 6}) {
    SCOPED_TRACE(beside);
    GraphBuilder g;
    const int r = g.buffer(10), c = g.buffer(4), e = g.buffer(beside), out = g.returned(1);
    g.op({}, {}, {r});
    may_reuse(g.op({r}, {}, {c}), r, c);
    g.op({c}, {}, {e});
    g.op({e}, {}, {out});
    const PlanResult result = plan(g.build(), {});
    EXPECT_EQ(result.lower_bound_bytes, 10);
    EXPECT_EQ(result.peak_bytes, 10);
    EXPECT_EQ(result.plan->arena_bytes, 10);
  }
}

}  // namespace
}  // namespace stowage::testing
