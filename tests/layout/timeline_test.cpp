// Steps as intervals: ticks, births, scratch, copies and in-place reuse.
#include "layout/timeline.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/builder.h"

namespace stowage::testing {
namespace {

bool operator==(const LayoutItem& a, const LayoutItem& b) {
  return a.lower == b.lower && a.upper == b.upper && a.bytes == b.bytes;
}

TEST(Timeline, AnOpTakesItsTicksAndABufferBornLateBeginsWithinThem) {
  GraphBuilder g;
  const int a = g.buffer(10), b = g.buffer(20);
  g.op({}, {}, {a});
  Op& op = g.op({a}, {}, {b});
  op.ticks = 3;
  op.born = {1};
  op.scratch = {{5, 0, 2}};
  g.op({b}, {}, {});
  const Graph graph = g.build();
  const AnalysedGraph analysed(graph);
  const Timeline times = timeline(OrderedGraph(analysed, program_order(graph)), {});
  EXPECT_EQ(times.start, (std::vector<std::int64_t>{0, 1, 4, 5}));
  ASSERT_EQ(times.items.size(), 3U);
  EXPECT_TRUE((times.items[0] == LayoutItem{0, 4, 10}));  // a, up to the end of its reader
  EXPECT_TRUE((times.items[1] == LayoutItem{2, 5, 20}));  // b, from tick 1 of its maker
  EXPECT_TRUE((times.items[2] == LayoutItem{1, 3, 5}));   // the scratch
  EXPECT_EQ(times.item_of, (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(Timeline, WhatLiesOverAnInputJoinsItsIntervalAsWideAsTheWiderOne) {
  GraphBuilder g;
  const int r = g.buffer(10), c = g.buffer(8);
  g.op({}, {}, {r});
  g.op({r}, {}, {c}).takeover = {{BufferId(r), BufferId(c)}};
  g.op({c}, {}, {});
  const Graph graph = g.build();
  const AnalysedGraph analysed(graph);
  const OrderedGraph ordered(analysed, program_order(graph));
  ASSERT_EQ(ordered.reuse.size(), 1U);
  const Timeline apart = timeline(ordered, {}), joined = timeline(ordered, ordered.reuse);
  EXPECT_EQ(apart.items.size(), 2U);
  ASSERT_EQ(joined.items.size(), 1U);
  EXPECT_TRUE((joined.items[0] == LayoutItem{0, 3, 10}));
  EXPECT_EQ(joined.items[0].narrow_from, 2);  // in c's first step r counts
  EXPECT_EQ(joined.items[0].narrow_bytes, 8);
  EXPECT_EQ(joined.item_of, (std::vector<std::int32_t>{0, 0}));
  const Plan plan = assemble(graph, joined, {Outcome::kOptimal, {0}, 10, 10, 0});
  EXPECT_EQ(plan.arena_bytes, 10);
  ASSERT_EQ(plan.placements.size(), 2U);
  EXPECT_EQ(plan.placements[0].to, 2);
  EXPECT_EQ(plan.placements[1].from, 1);
  EXPECT_EQ(plan.placements[1].offset, 0);
}

TEST(Timeline, OfSeveralStepsDownAnItemHasTheOneThatLeavesTheMost) {
  GraphBuilder g;
  const int a = g.buffer(100), b = g.buffer(90), c = g.buffer(20), d = g.buffer(10);
  g.op({}, {}, {a});
  g.op({a}, {}, {b}).takeover = {{BufferId(a), BufferId(b)}};
  g.op({b}, {}, {c}).takeover = {{BufferId(b), BufferId(c)}};
  g.op({c}, {}, {d}).takeover = {{BufferId(c), BufferId(d)}};
  g.op({d}, {}, {});
  const Graph graph = g.build();
  const AnalysedGraph analysed(graph);
  const OrderedGraph ordered(analysed, program_order(graph));
  const Timeline times = timeline(ordered, ordered.reuse);
  ASSERT_EQ(times.items.size(), 1U);
  EXPECT_TRUE((times.items[0] == LayoutItem{0, 5, 100}));
  EXPECT_EQ(times.items[0].narrow_from, 3);
  EXPECT_EQ(times.items[0].narrow_bytes, 20);
}

TEST(Timeline, ACopyTakesOneUnitAndEachStretchOnTheDeviceIsAnItem) {
  GraphBuilder g;
  const int a = g.buffer(10);
  g.op({}, {}, {a}).ticks = 2;
  g.op({a}, {}, {});
  const Graph graph = g.build();
  const Timeline times = timeline(graph, {run(0), swap_out(a, 2), swap_in(a, 3), run(1)},
                                  std::vector<Piece>{{BufferId(a), 0, 2, 0, {}}, {BufferId(a), 2, 4, 0, {}}});
  EXPECT_EQ(times.start, (std::vector<std::int64_t>{0, 2, 3, 4, 5}));
  ASSERT_EQ(times.items.size(), 2U);
  EXPECT_TRUE((times.items[0] == LayoutItem{0, 3, 10}));
  EXPECT_TRUE((times.items[1] == LayoutItem{3, 5, 10}));
}

}  // namespace
}  // namespace stowage::testing
