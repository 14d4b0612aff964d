// Lifetimes and peaks of given orders, with the arithmetic beside each case.
#include "graph/analysed_graph.h"
#include "graph/in_place_reuse.h"

#include <gtest/gtest.h>

#include "stowage/planner.h"
#include "support/builder.h"

namespace stowage::testing {
namespace {

std::int64_t run_bytes(const Graph& graph, OpId op) { return AnalysedGraph(graph).run_bytes[op]; }

TEST(Liveness, BuffersLiveFromTheirCreationToTheirLastUse) {
  GraphBuilder g;
  const int weight = g.resident(100), a = g.buffer(10), unused = g.buffer(7), loss = g.returned(1);
  g.op({weight}, {}, {a, unused});
  g.op({a}, {}, {loss});
  g.op({}, {weight}, {});
  const Graph graph = g.build();
  const IdVector<BufferId, Lifetime> live = lifetimes(graph, program_order(graph));
  EXPECT_EQ(live[BufferId(weight)].from, live[BufferId(weight)].to);
  EXPECT_EQ(live[BufferId(a)].to, 2);
  EXPECT_EQ(live[BufferId(unused)].to, 1);
  EXPECT_EQ(live[BufferId(loss)].from, 1);
  EXPECT_EQ(live[BufferId(loss)].to, 3);
  EXPECT_EQ(program_peak_bytes(graph), 17);  // step 0: 10 + 7
}

TEST(Liveness, InsideAnOpTheHeaviestTickCounts) {
  GraphBuilder g;
  const int early = g.buffer(10), late = g.buffer(20);
  Op& op = g.op({}, {}, {early, late});
  op.ticks = 3;
  op.born = {0, 2};
  op.scratch = {{15, 0, 2}, {3, 1, 3}};
  g.op({early, late}, {}, {});
  const Graph graph = g.build();
  EXPECT_EQ(added_bytes(graph, graph.ops[0]), 33);  // ticks: 10 + 15 | 10 + 15 + 3 | 10 + 20 + 3
  EXPECT_EQ(program_peak_bytes(graph), 33);
}

TEST(Liveness, BytesAreRoundedUpToTheAlignment) {
  GraphBuilder g(64);
  const int a = g.buffer(1), none = g.buffer(0);
  g.op({}, {}, {a, none});
  g.op({a, none}, {}, {});
  EXPECT_EQ(program_peak_bytes(g.build()), 64);
}

TEST(Liveness, OneOpNeedsWhatItTouchesAndAReusePairOnce) {
  GraphBuilder g;
  const int weight = g.resident(1000), a = g.buffer(10), b = g.buffer(8);
  g.op({}, {}, {a});
  Op& op = g.op({weight, a}, {}, {b});
  op.scratch = {{5, 0, 1}};
  EXPECT_EQ(run_bytes(g.build(), OpId(1)), 23);
  op.takeover = {{BufferId(a), BufferId(b)}};
  EXPECT_EQ(run_bytes(g.build(), OpId(1)), 15);
}

}  // namespace
}  // namespace stowage::testing
