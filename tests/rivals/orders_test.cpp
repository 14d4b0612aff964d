#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "graph/dependencies.h"
#include "graph/in_place_reuse.h"
#include "graph/liveness.h"
#include "rivals/evaluate.h"
#include "rivals/inductor_orders.h"
#include "rivals/lescea.h"
#include "rivals/llfb.h"
#include "stowage/error.h"
#include "support/builder.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::rivals {
namespace {

using testing::GraphBuilder;

std::vector<int> ids(const std::vector<OpId>& order) {
  std::vector<int> result;
  for (const OpId op : order) result.push_back(op.value);
  return result;
}

// Two branches of a source, joined by op 5:
//
//   0 ──a 10──▶ 1 ──b 90──▶ 2 ──c 10──▶ 5
//   └──────────▶ 3 ──d 40──▶ 4 ──e 5 ──▶┘
Graph two_branches() {
  GraphBuilder g;
  const int a = g.buffer(10), b = g.buffer(90), c = g.buffer(10), d = g.buffer(40), e = g.buffer(5),
            out = g.returned(1);
  g.op({}, {}, {a}).name = "a";
  g.op({a}, {}, {b}).name = "b";
  g.op({b}, {}, {c}).name = "c";
  g.op({a}, {}, {d}).name = "d";
  g.op({d}, {}, {e}).name = "e";
  g.op({c, e}, {}, {out}).name = "f";
  return g.build();
}

// After op 0 (live 10, peak 10) nothing fits: op 3 has the least rise (peak 50). Then op 4 frees d (live 15, peak 55);
// op 1 must follow (105, then a is freed: 95), op 2 (105), op 5.
TEST(Lescea, TakesTheLeastNewPeakWhenNothingFits) {
  const Graph graph = two_branches();
  EXPECT_EQ(ids(lescea_order(graph)), (std::vector{0, 3, 4, 1, 2, 5}));
  EXPECT_EQ(evaluate_peak(graph, lescea_order(graph)), 105);
}

// Three equal ops: LESCEA goes by name, LPMF by position.
TEST(ListScheduling, BreaksTies) {
  GraphBuilder g;
  const int x = g.buffer(8), y = g.buffer(8), z = g.buffer(8);
  g.op({}, {}, {x}).name = "c";
  g.op({}, {}, {y}).name = "a";
  g.op({}, {}, {z}).name = "b";
  const Graph graph = g.build();
  EXPECT_EQ(ids(lescea_order(graph)), (std::vector{1, 2, 0}));
  EXPECT_EQ(ids(lpmf_order(graph)), (std::vector{0, 1, 2}));
}

// LPMF begins with the returned bytes as its peak: under them the op that grows least runs first, without them the one
// that rises least. Op 0 makes 4 bytes that stay, op 1 makes 6 and drops them at once.
TEST(InductorLpmf, KnowsTheReturnedBytes) {
  GraphBuilder g;
  const int kept = g.returned(4), dropped = g.buffer(6), out = g.returned(6);
  g.op({}, {}, {kept}).name = "kept";
  g.op({}, {}, {dropped}).name = "dropped";
  g.op({}, {}, {out}).name = "out";
  const Graph graph = g.build();
  EXPECT_EQ(ids(lpmf_order(graph)), (std::vector{1, 0, 2}));
  EXPECT_EQ(ids(lescea_order(graph)), (std::vector{0, 1, 2}));
}

//   0 ─▶ 2 ─▶ 4        BFS: 2 waited for the op at position 0, 3 for that at 1; then 4 (for 2) and 5 (for 3): level by level.
//   1 ─▶ 3 ─▶ 5        DFS: all ops by moved bytes, each after its predecessors: chain by chain, the light one first.
TEST(InductorOrders, GoBreadthAndDepthFirst) {
  GraphBuilder g;
  std::vector<int> buffers;
  for (const int bytes : {10, 2, 10, 2, 10, 2}) buffers.push_back(g.buffer(bytes));
  g.op({}, {}, {buffers[0]}).name = "a0";
  g.op({}, {}, {buffers[1]}).name = "b0";
  g.op({buffers[0]}, {}, {buffers[2]}).name = "a1";
  g.op({buffers[1]}, {}, {buffers[3]}).name = "b1";
  g.op({buffers[2]}, {}, {buffers[4]}).name = "a2";
  g.op({buffers[3]}, {}, {buffers[5]}).name = "b2";
  const Graph graph = g.build();
  EXPECT_EQ(ids(bfs_order(graph)), (std::vector{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ids(dfs_order(graph)), (std::vector{1, 3, 5, 0, 2, 4}));
}

// BFS compares all positions of the predecessors, the earliest first: op 4 waited for (0, 1), op 3 for (0, 2), op 5 for
// (1).
TEST(InductorOrders, BreadthFirstComparesPositionsAsLists) {
  GraphBuilder g;
  std::vector<int> buffers;
  for (int i = 0; i < 6; ++i) buffers.push_back(g.buffer(1));
  g.op({}, {}, {buffers[0]}).name = "p0";
  g.op({}, {}, {buffers[1]}).name = "p1";
  g.op({}, {}, {buffers[2]}).name = "p2";
  g.op({buffers[0], buffers[2]}, {}, {buffers[3]}).name = "q";
  g.op({buffers[0], buffers[1]}, {}, {buffers[4]}).name = "r";
  g.op({buffers[1]}, {}, {buffers[5]}).name = "s";
  EXPECT_EQ(ids(bfs_order(g.build())), (std::vector{0, 1, 2, 4, 3, 5}));
}

// Bytes live after the ops of `ran`, from the definition.
std::int64_t live_after(const Graph& graph, const std::vector<OpId>& ran) {
  const auto has_run = [&](std::int32_t op) { return std::find(ran.begin(), ran.end(), OpId(op)) != ran.end(); };
  const Uses use = uses(graph);
  std::int64_t sum = 0;
  for (const BufferId b : use.creator.ids()) {
    if (graph.buffer(b).resident || !has_run(use.creator[b])) continue;
    const auto users = use.users[b];
    if (graph.buffer(b).returned || !std::all_of(users.begin(), users.end(), has_run))
      sum += graph.padded(graph.buffer(b).bytes);
  }
  return sum;
}

// LESCEA without any bookkeeping.
std::vector<OpId> naive_lescea(const Graph& graph) {
  std::vector<OpId> order;
  std::vector<bool> done(graph.ops.size(), false);
  std::int64_t peak = 0;
  const Dependencies edges = dependencies(graph);
  while (order.size() < graph.ops.size()) {
    struct Choice {
      bool over;
      std::int64_t figure;
      std::string name;
      std::size_t op;
      auto operator<=>(const Choice&) const = default;
    };
    std::optional<Choice> best;
    std::int64_t best_step = 0;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const auto preds = edges.preds[i];
      if (done[i] ||
          !std::all_of(preds.begin(), preds.end(), [&](std::int32_t p) { return done[static_cast<std::size_t>(p)]; }))
        continue;
      std::vector<OpId> tried = order;
      tried.emplace_back(i);
      const std::int64_t step = live_after(graph, order) + added_bytes(graph, graph.ops[i]);
      const bool over = step > peak;
      const Choice choice{over, over ? step : live_after(graph, tried), graph.ops[i].name, i};
      if (!best || choice < *best) best = choice, best_step = step;
    }
    peak = std::max(peak, best_step);
    done[best->op] = true;
    order.emplace_back(best->op);
  }
  return order;
}

TEST(Orders, AreValidAndLesceaIsItsPlainTwin) {
  const std::uint64_t seed = testing::first_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    testing::RandomGraphOptions options;
    options.ops = 3 + round % 10;
    const Graph graph = testing::random_graph(random, options);
    for (const auto& rule : {lescea_order, lpmf_order, bfs_order, dfs_order}) {
      const Evaluation found = evaluate(graph, rule(graph), llfb_layout);  // throws unless the checker accepts it
      EXPECT_GE(found.arena_bytes, found.peak_bytes);
    }
    EXPECT_EQ(ids(lescea_order(graph)), ids(naive_lescea(graph)));
  }
}

TEST(Evaluate, RefusesAnOrderThatBreaksADependency) {
  const Graph graph = two_branches();
  const std::vector<OpId> order = {OpId(1), OpId(0), OpId(2), OpId(3), OpId(4), OpId(5)};
  EXPECT_THROW(evaluate_peak(graph, order), Error);
}

}  // namespace
}  // namespace stowage::rivals
