// The whole order search against brute force on thousands of small graphs, and its two exact searches against each
// other on larger.
#include <gtest/gtest.h>

#include <random>

#include "graph/ordered_graph.h"
#include "order/contract.h"
#include "order/greedy.h"
#include "order/projection.h"
#include "order/prove.h"
#include "order/reuse_pairs.h"
#include "order/search.h"
#include "order/solve.h"
#include "stowage/io.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/state_walk.h"

namespace stowage::testing {
namespace {

// Both graphs in one, the ops of each in order but mixed with the other's: components that share nothing.
Graph side_by_side(std::mt19937_64& random, const Graph& first, const Graph& second) {
  Graph both = first;
  both.ops.clear();
  const auto shift = static_cast<std::int32_t>(first.buffers.size());
  both.buffers.insert(both.buffers.end(), second.buffers.begin(), second.buffers.end());
  std::size_t i = 0, j = 0;
  std::vector<std::int32_t> first_at, second_at;
  while (i < first.ops.size() || j < second.ops.size()) {
    const bool take_first = j == second.ops.size() || (i < first.ops.size() && chance(random, 50));
    Op op = take_first ? first.ops[i++] : second.ops[j++];
    auto& at = take_first ? first_at : second_at;
    at.push_back(static_cast<std::int32_t>(both.ops.size()));
    for (OpId& id : op.after) id = OpId(at[id.index()]);
    if (!take_first) {
      for (auto* list : {&op.reads, &op.writes, &op.creates})
        for (BufferId& b : *list) b = BufferId(b.value + shift);
      for (ReusePair& pair : op.takeover)
        pair = {BufferId(pair.read.value + shift), BufferId(pair.created.value + shift)};
    }
    both.ops.push_back(std::move(op));
  }
  validate(both);
  seal(both);
  return both;
}

// Activations that rise and fall, gradients that wait for updates with temporaries: `layers` of 3 ops each.
Graph training_step(std::mt19937_64& random, int layers) {
  Graph graph;
  graph.align = 1;
  const auto buffer = [&](std::int64_t bytes) {
    graph.buffers.push_back(
        {"b" + std::to_string(graph.buffers.size()), bytes, BufferKind::kTemporary, false, false, ""});
    return BufferId(static_cast<std::int32_t>(graph.buffers.size()) - 1);
  };
  const auto op = [&](std::vector<BufferId> reads, std::vector<BufferId> creates, std::int64_t scratch) {
    Op made;
    made.name = "op" + std::to_string(graph.ops.size());
    made.target = "test::op";
    made.reads = std::move(reads);
    made.creates = std::move(creates);
    if (scratch > 0) made.scratch.push_back({scratch, 0, 1});
    graph.ops.push_back(std::move(made));
  };
  std::vector<BufferId> kept, gradients;
  for (int i = 0; i < layers; ++i) {
    const BufferId made = buffer(draw(random, 1, 40));
    op(i == 0 ? std::vector<BufferId>{} : std::vector<BufferId>{kept.back()}, {made}, draw(random, 0, 10));
    kept.push_back(made);
  }
  BufferId flow = kept.back();
  for (int i = layers; i-- > 0;) {
    const BufferId back = buffer(draw(random, 1, 20)), gradient = buffer(draw(random, 1, 40));
    std::vector<BufferId> reads{kept[static_cast<std::size_t>(i)]};
    if (flow != reads[0]) reads.push_back(flow);
    op(reads, {back, gradient}, 0);
    flow = back;
    gradients.push_back(gradient);
  }
  for (const BufferId gradient : gradients) op({gradient}, {}, 2 * graph.buffer(gradient).bytes);
  validate(graph);
  seal(graph);
  return graph;
}

void expect_exact(const Graph& graph) {
  const AnalysedGraph analysed(graph);
  const OrderModel model(analysed);
  const std::int64_t best = StateWalk(model.plain).run().peak, least = StateWalk(model.relaxed).run().peak;
  EXPECT_LE(plain_bound(model), best);
  EXPECT_LE(root_bound(model, 100'000'000), least);
  const OrderResult without = find_order(model, {100'000'000, {}, false}),
                    with = find_order(model, {100'000'000, {}, true});
  EXPECT_EQ(without.peak_bytes, best);
  EXPECT_EQ(without.bound_bytes, least);
  EXPECT_LE(with.peak_bytes, best);
  EXPECT_GE(with.peak_bytes, least);
  EXPECT_GE(with.bound_bytes, least);
  EXPECT_LE(with.bound_bytes, with.peak_bytes);
  for (const auto& order : without.orders) EXPECT_EQ(peak_bytes(graph, order), best);
}

template <class Body>
void for_seeds(int count, Body body) {
  for (int i = 0; i < count; ++i) {
    const std::uint64_t seed = first_seed() * 100'000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    body(random, i);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(FindOrder, IsExactOnRandomGraphs) {
  for_seeds(2'500, [](std::mt19937_64& random, int i) {
    RandomGraphOptions options;
    options.ops = 1 + i % 11;
    options.ordering = i % 2 == 0;
    options.in_place = i % 3 != 0;
    expect_exact(random_graph(random, options));
  });
}

TEST(FindOrder, IsExactOnGraphsOfSeveralComponents) {
  for_seeds(600, [](std::mt19937_64& random, int i) {
    RandomGraphOptions options;
    options.ops = 1 + i % 5;
    options.ordering = false;  // rng and effect ops would join the two
    const Graph first = random_graph(random, options);
    options.ops = 1 + i % 6;
    expect_exact(side_by_side(random, first, random_graph(random, options)));
  });
}

TEST(FindOrder, IsExactOnSmallTrainingSteps) {
  for_seeds(300, [](std::mt19937_64& random, int i) { expect_exact(training_step(random, 2 + i % 3)); });
}

TEST(FindOrder, ProjectionAndDecisionsAgreeOnLargerGraphs) {
  for_seeds(150, [](std::mt19937_64& random, int i) {
    RandomGraphOptions options;
    options.ops = 20 + i % 30;
    const Graph graph = i % 2 == 0 ? random_graph(random, options) : training_step(random, 7 + i % 9);
    const Contracted small = contracted(order_problem(AnalysedGraph(graph)));
    const Ordering start = greedy(small.problem, GreedyRule::kProgramOrder, 0);
    std::vector<std::int32_t> members;
    std::int64_t work = 30'000'000;
    const BoundedOrder one = project(small.problem, start, 0, members, work, {});
    work = 30'000'000;
    const BoundedOrder other = prove(small.problem, start, 0, work, {});
    EXPECT_LE(one.bound, other.order.peak);
    EXPECT_LE(other.bound, one.order.peak);
    EXPECT_EQ(one.order.peak, peak(small.problem, one.order.ops));
    EXPECT_EQ(other.order.peak, peak(small.problem, other.order.ops));
  });
}

TEST(FindOrder, EqualInputGivesEqualOrdersAndMoreWorkIsNeverWorse) {
  for_seeds(40, [](std::mt19937_64& random, int) {
    RandomGraphOptions options;
    options.ops = 60;
    const Graph graph = random_graph(random, options);
    const AnalysedGraph analysed(graph);
    const OrderModel model(analysed);
    const OrderResult little = find_order(model, {1'000'000, {}, true}),
                      again = find_order(model, {1'000'000, {}, true});
    EXPECT_EQ(little.orders, again.orders);
    EXPECT_EQ(little.bound_bytes, again.bound_bytes);
    const OrderResult more = find_order(model, {50'000'000, {}, true});
    EXPECT_LE(more.peak_bytes, little.peak_bytes);
    EXPECT_GE(more.bound_bytes, little.bound_bytes);
  });
}

}  // namespace
}  // namespace stowage::testing
