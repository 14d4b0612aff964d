// What follows from one order: lifetimes, in-place reuse, bytes per step.
#include "graph/ordered_graph.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "graph/in_place_reuse.h"
#include "support/builder.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// 0 makes r, 1 reads r and may write c over it, 2 reads r.
struct TwoUsers {
  GraphBuilder g;
  int r = g.buffer(10), c = g.buffer(10);
  Graph graph;

  TwoUsers() {
    g.op({}, {}, {r});
    g.op({r}, {}, {c}).takeover = {{BufferId(r), BufferId(c)}};
    g.op({r}, {}, {});
    graph = g.build();
  }
};

TEST(OrderedGraph, AnInputIsReusedInTheOrdersInWhichItDiesThere) {
  const TwoUsers example;
  const AnalysedGraph analysed(example.graph);
  const OrderedGraph early(analysed, {OpId(0), OpId(1), OpId(2)}), late(analysed, {OpId(0), OpId(2), OpId(1)});
  EXPECT_TRUE(early.reuse.empty());
  ASSERT_EQ(late.reuse.size(), 1U);
  EXPECT_EQ(late.reuse[0].step, 2);
  EXPECT_EQ(late.reuse[0].pair.read, BufferId(example.r));
  EXPECT_EQ(peak_bytes(early, early.reuse), 20);
  EXPECT_EQ(peak_bytes(late, late.reuse), 10);
  EXPECT_EQ(peak_bytes(late, {}), 20);
}

TEST(OrderedGraph, StepsTakeWhatLivesOnAndWhatTheOpAdds) {
  const TwoUsers example;
  const AnalysedGraph analysed(example.graph);
  const OrderedGraph late(analysed, {OpId(0), OpId(2), OpId(1)});
  EXPECT_EQ(step_bytes(late, {}), (std::vector<std::int64_t>{10, 10, 20}));
  EXPECT_EQ(step_bytes(late, late.reuse), (std::vector<std::int64_t>{10, 10, 10}));
}

// Each byte counted by itself, from the definitions.
TEST(OrderedGraph, StepBytesAreThoseOfACountBufferByBuffer) {
  int reused = 0;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 1 + i % 20;
    const Graph graph = random_graph(random, options);
    const AnalysedGraph analysed(graph);
    const OrderedGraph ordered(analysed, program_order(graph));
    reused += static_cast<int>(ordered.reuse.size());
    std::vector<std::int64_t> plain, with;
    for (std::size_t step = 0; step < graph.ops.size(); ++step) {
      std::int64_t before = 0;
      for (const BufferId b : ordered.live.ids()) {
        const Lifetime live = ordered.live[b];
        if (live.from < static_cast<int>(step) && live.to > static_cast<int>(step))
          before += graph.padded(graph.buffer(b).bytes);
      }
      std::vector<ReusePair> here;
      for (const ReuseAt& at : ordered.reuse)
        if (at.step == static_cast<int>(step)) here.push_back(at.pair);
      plain.push_back(before + added_bytes(graph, graph.ops[step]));
      with.push_back(before + added_bytes(graph, graph.ops[step], here));
    }
    EXPECT_EQ(step_bytes(ordered, {}), plain);
    EXPECT_EQ(step_bytes(ordered, ordered.reuse), with);
    EXPECT_EQ(peak_bytes(graph, ordered.order), peak_bytes(ordered, {}));
  }
  EXPECT_GT(reused, 20);
}

}  // namespace
}  // namespace stowage::testing
