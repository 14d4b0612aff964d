// Rule 6 inside a step: ticks, births, scratch and in-place reuse.
#include <gtest/gtest.h>

#include "stowage/check.h"
#include "support/builder.h"
#include "support/naive_checker.h"

namespace stowage::testing {
namespace {

void expect_valid(const Graph& graph, const Plan& plan, std::int64_t peak) {
  const CheckReport report = check(graph, plan);
  EXPECT_TRUE(report.valid) << report.message;
  EXPECT_EQ(report.peak_bytes, peak);
  EXPECT_EQ(naive_peak(graph, plan), peak);
}

void expect_broken(const Graph& graph, const Plan& plan, int rule) {
  const CheckReport report = check(graph, plan);
  EXPECT_EQ(report.rule, rule) << report.message;
  EXPECT_FALSE(report.valid);
  EXPECT_FALSE(naive_peak(graph, plan).has_value());
}

// One op of four ticks: scratch [0, 2) and [2, 4), and an output that is born at tick 3.
TEST(CheckInside, ScratchAndBirthShareAddressesAtDifferentTicks) {
  GraphBuilder g;
  const int out = g.buffer(8);
  Op& op = g.op({}, {}, {out});
  op.ticks = 4;
  op.born = {3};
  op.scratch = {{8, 0, 2}, {8, 2, 3}};
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 8, {run(0)}, {place(out, 0, 1, 0)}, {{0, 0, 0}, {0, 1, 0}}, {}};
  expect_valid(graph, plan, 8);
  op.scratch[1].to = 4;
  const Graph longer = g.build();
  plan.graph_sha256 = longer.sha256;
  expect_broken(longer, plan, 6);
}

TEST(CheckInside, ReadsAreLiveForAllTicks) {
  GraphBuilder g;
  const int in = g.buffer(8);
  const int out = g.buffer(8);
  g.op({}, {}, {in});
  Op& op = g.op({in}, {}, {out});
  op.ticks = 2;
  op.born = {1};
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 16, {run(0), run(1)}, {place(in, 0, 2, 0), place(out, 1, 2, 0)}, {}, {}};
  expect_broken(graph, plan, 6);
  plan.placements[1].offset = 8;
  expect_valid(graph, plan, 16);
}

TEST(CheckInside, ARerunNeedsAddressesForItsScratch) {
  GraphBuilder g;
  const int out = g.buffer(8);
  g.op({}, {}, {out}).scratch = {{8, 0, 1}};
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 16, {run(0), run(0)}, {place(out, 0, 2, 0)}, {{1, 0, 8}}, {}};
  expect_broken(graph, plan, 6);
  plan.scratch.push_back({0, 0, 8});
  expect_valid(graph, plan, 16);
}

TEST(CheckInside, PeakRoundsUpToAlign) {
  GraphBuilder g(64);
  const int a = g.buffer(1);
  const int b = g.buffer(65);
  g.op({}, {}, {a, b});
  const Graph graph = g.build();
  const Plan plan{graph.sha256, 64, 192, {run(0)}, {place(a, 0, 1, 0), place(b, 0, 1, 64)}, {}, {}};
  expect_valid(graph, plan, 192);
}

// op 0 makes r, op 1 reads r and may write c over it, op 2 reads c.
struct ReuseExample {
  GraphBuilder builder{1};
  int r = builder.buffer(8);
  int c = builder.buffer(6);

  ReuseExample() {
    builder.op({}, {}, {r});
    builder.op({r}, {}, {c}).takeover.push_back({BufferId(r), BufferId(c)});
    builder.op({c}, {}, {});
  }

  [[nodiscard]] Plan plan(const Graph& graph) const {
    return {graph.sha256, 1, 16, {run(0), run(1), run(2)}, {place(r, 0, 2, 0), place(c, 1, 3, 0)}, {}, {}};
  }
};

TEST(CheckInPlaceReuse, SharesTheAddress) {
  const ReuseExample example;
  const Graph graph = example.builder.build();
  expect_valid(graph, example.plan(graph), 8);
}

TEST(CheckInPlaceReuse, NeedsTheSameOffset) {
  const ReuseExample example;
  const Graph graph = example.builder.build();
  Plan plan = example.plan(graph);
  plan.placements[1].offset = 1;
  expect_broken(graph, plan, 6);
}

TEST(CheckInPlaceReuse, NeedsTheReadToEndThere) {
  const ReuseExample example;
  const Graph graph = example.builder.build();
  Plan plan = example.plan(graph);
  plan.placements[0].to = 3;
  expect_broken(graph, plan, 6);
}

TEST(CheckInPlaceReuse, NeedsThePairInTheGraph) {
  GraphBuilder g;
  const int r = g.buffer(8);
  const int c = g.buffer(6);
  g.op({}, {}, {r});
  g.op({r}, {}, {c});
  const Graph graph = g.build();
  const Plan plan{graph.sha256, 1, 16, {run(0), run(1)}, {place(r, 0, 2, 0), place(c, 1, 2, 0)}, {}, {}};
  expect_broken(graph, plan, 6);
}

TEST(CheckInPlaceReuse, TwoBuffersCannotReuseOne) {
  GraphBuilder g;
  const int r = g.buffer(8);
  const int c = g.buffer(4);
  const int d = g.buffer(4);
  g.op({}, {}, {r});
  g.op({r}, {}, {c, d}).takeover = {{BufferId(r), BufferId(c)}, {BufferId(r), BufferId(d)}};
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 16, {run(0), run(1)}, {place(r, 0, 2, 0), place(c, 1, 2, 0), place(d, 1, 2, 0)}, {}, {}};
  expect_broken(graph, plan, 6);
  plan.placements[2].offset = 8;
  expect_valid(graph, plan, 12);
}

TEST(CheckInPlaceReuse, AZeroByteBufferTakesNothing) {
  GraphBuilder g;
  const int r = g.buffer(8);
  const int none = g.buffer(0);
  const int c = g.buffer(8);
  g.op({}, {}, {r});
  g.op({r}, {}, {none, c}).takeover = {{BufferId(r), BufferId(none)}, {BufferId(r), BufferId(c)}};
  const Graph graph = g.build();
  expect_valid(
      graph,
      {graph.sha256, 1, 8, {run(0), run(1)}, {place(r, 0, 2, 0), place(none, 1, 2, 0), place(c, 1, 2, 0)}, {}, {}}, 8);
}

// c was there before: a second run of the op does not excuse that r came to lie over it.
TEST(CheckInPlaceReuse, NeedsTheCreatedToBeginThere) {
  GraphBuilder g;
  const int r = g.buffer(8);
  const int c = g.returned(8);
  g.op({}, {}, {r});
  g.op({r}, {}, {c}).takeover = {{BufferId(r), BufferId(c)}};
  const Graph graph = g.build();
  Plan plan{
      graph.sha256, 1, 16, {run(0), run(1), run(0), run(1)}, {place(r, 0, 2, 8), place(c, 1, 4, 0), place(r, 2, 4, 0)},
      {},           {}};
  expect_broken(graph, plan, 6);
  plan.placements[2].offset = 8;
  expect_valid(graph, plan, 16);
}

// r's end is not free for a scratch buffer while the smaller c lies over its beginning.
TEST(CheckInPlaceReuse, TheReadKeepsItsWholePlaceForTheStep) {
  GraphBuilder g;
  const int r = g.buffer(8);
  const int c = g.buffer(4);
  g.op({}, {}, {r});
  Op& op = g.op({r}, {}, {c});
  op.takeover = {{BufferId(r), BufferId(c)}};
  op.scratch = {{4, 0, 1}};
  const Graph graph = g.build();
  Plan plan{graph.sha256, 1, 16, {run(0), run(1)}, {place(r, 0, 2, 0), place(c, 1, 2, 0)}, {{1, 0, 4}}, {}};
  expect_broken(graph, plan, 6);
  plan.scratch[0].offset = 8;
  expect_valid(graph, plan, 12);
}

// The kernel writes over r, so r must not be on its way to the host, nor be returned.
TEST(CheckInPlaceReuse, DoesNotDestroyWhatIsStillNeeded) {
  ReuseExample example;
  const Graph graph = example.builder.build();
  Plan plan = example.plan(graph);
  plan.steps.insert(plan.steps.begin() + 1, swap_out(example.r, 3));
  plan.placements = {place(example.r, 0, 3, 0), place(example.c, 2, 4, 0)};
  expect_broken(graph, plan, 4);
  plan.steps[1].until = 2;
  expect_valid(graph, plan, 8);
}

TEST(CheckInPlaceReuse, DoesNotDestroyWhatIsReturned) {
  GraphBuilder g;
  const int r = g.returned(8);
  const int c = g.buffer(8);
  g.op({}, {}, {r});
  g.op({r}, {}, {c}).takeover = {{BufferId(r), BufferId(c)}};
  const Graph graph = g.build();
  const Plan plan{graph.sha256, 1, 16, {run(0), run(1)}, {place(r, 0, 2, 0), place(c, 1, 2, 0)}, {}, {}};
  expect_broken(graph, plan, 5);
}

}  // namespace
}  // namespace stowage::testing
