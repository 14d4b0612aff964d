// Memory-insensitive ops, the subgraph tree and the schedule of updates.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "graph/analysed_graph.h"
#include "roam/arrange.h"
#include "roam/order.h"
#include "roam/segments.h"
#include "roam/spans.h"
#include "roam/tree.h"
#include "roam/updates.h"
#include "stowage/error.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/training_graph.h"

namespace stowage::testing {
namespace {

using namespace stowage::roam;

TEST(Segments, InsensitiveOpsHaveOnePositionInEveryOrder) {
  std::int64_t found = 0;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 1 + i % 14;
    const Graph graph = random_graph(random, options);
    const AnalysedGraph analysed(graph);
    const Dependencies& deps = analysed.dependencies;
    const Spans s = spans(order_problem(analysed), Streams::kSingle, 1.0);
    std::vector<std::int32_t> fixed;
    for (std::int32_t op = 0; op < options.ops; ++op)
      if (s.asap[op] == s.alap[op]) fixed.push_back(op);
    EXPECT_EQ(insensitive(deps.preds, std::vector<char>(graph.ops.size(), 0)), fixed);
    found += std::ssize(fixed);
  }
  EXPECT_GT(found, 100);
}

// Segments [0,2) [2,4) loss [4,5) [5,7) [7,9), each of the four with a buffer that lives from one side to its mirror
// image.
OrderProblem mirrored_step() {
  Graph graph;
  graph.align = 1;
  for (int i = 0; i < 3; ++i) graph.buffers.push_back({"b", 10, BufferKind::kActivation, false, false, ""});
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> ops = {
      {{}, {0}}, {{}, {}}, {{}, {1}}, {{}, {}}, {{}, {2}}, {{1}, {}}, {{2}, {}}, {{0}, {}}, {{}, {}}};
  for (const auto& [reads, creates] : ops) {
    Op op;
    for (const int b : reads) op.reads.emplace_back(b);
    for (const int b : creates) op.creates.emplace_back(b);
    if (!graph.ops.empty()) op.after.emplace_back(graph.ops.size() - 1);
    graph.ops.push_back(op);
  }
  validate(graph);
  return order_problem(AnalysedGraph(graph));
}

TEST(Tree, ShellsMirrorForwardAndBackward) {
  const std::vector<Shell> shells = subgraph_tree(mirrored_step(), {0, 2, 4, 5, 7, 9}, 4, 2);
  ASSERT_EQ(shells.size(), 3u);
  EXPECT_EQ(shells[2].ops(), 1);  // the core; what it makes is used further out
  EXPECT_FALSE(shells[2].independent);
  EXPECT_EQ(shells[1].forward_from, 2);
  EXPECT_EQ(shells[1].backward_to, 7);
  EXPECT_TRUE(shells[1].independent);
  EXPECT_EQ(shells[0].forward_from, 0);
  EXPECT_EQ(shells[0].backward_to, 9);
  EXPECT_TRUE(shells[0].independent);
}

TEST(Tree, TheBackwardSideGoesOnAloneWhileTheShellIsDependent) {
  const std::vector<Shell> shells = subgraph_tree(mirrored_step(), {0, 2, 4, 5, 7, 9}, 4, 4);
  ASSERT_FALSE(shells.empty());
  EXPECT_EQ(shells.back().forward_from, 4);  // a pair more would be five ops, the backward half of it three
  EXPECT_EQ(shells.back().backward_to, 7);
  EXPECT_TRUE(shells.back().independent);
}

TEST(Tree, ALargeLimitMakesOneShell) {
  const std::vector<Shell> shells = subgraph_tree(mirrored_step(), {0, 2, 4, 5, 7, 9}, 4, 100);
  ASSERT_EQ(shells.size(), 1u);
  EXPECT_EQ(shells[0].ops(), 9);
}

TEST(Tree, CoversEveryStepOnceFromOutsideIn) {
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = static_cast<int>(draw(random, 1, 30));
    const Graph graph = random_graph(random, options);
    const OrderProblem p = order_problem(AnalysedGraph(graph));
    std::vector<std::int32_t> cuts = {0};
    for (std::int32_t c = 1; c < p.ops; ++c)
      if (chance(random, 40)) cuts.push_back(c);
    cuts.push_back(p.ops);
    const auto loss = static_cast<std::int32_t>(draw(random, 0, p.ops - 1));
    const std::vector<Shell> shells = subgraph_tree(p, cuts, loss, static_cast<std::int32_t>(draw(random, 1, 20)));
    std::int32_t from = 0, to = p.ops;
    for (const Shell& s : shells) {
      EXPECT_EQ(s.forward_from, from);
      EXPECT_EQ(s.backward_to, to);
      EXPECT_GT(s.ops(), 0);
      from = s.forward_to;
      to = s.backward_from;
    }
    EXPECT_EQ(from, to);
  }
}

TEST(Updates, FindsABranchForEachWeightAndTheOpThatMakesItsGradient) {
  TrainingGraphOptions training;
  training.layers = 3;
  const Graph graph = training_graph(training);
  const UpdatePlan plan = schedule_updates(AnalysedGraph(graph), {});
  ASSERT_EQ(plan.branches.size(), 3u);
  for (const UpdateBranch& b : plan.branches) {
    ASSERT_EQ(b.ops.size(), 5u);  // the gradient, addcmul_, two temporaries, addcdiv_
    EXPECT_EQ(graph.ops[b.ops[0]].name, "mm");
    EXPECT_EQ(graph.ops[b.ops[4]].name, "addcdiv_");
  }
  EXPECT_EQ(plan.base.size() + 15, graph.ops.size());
}

TEST(Updates, SmallOnesRunAtOnceAndLargeOnesWaitForRoom) {
  TrainingGraphOptions training;
  training.layers = 6;
  training.weight_bytes = 64;  // beside activations of 1024
  const auto waits = [&](double radius) {
    RoamOptions options;
    options.delay_radius = radius;
    const Graph graph = training_graph(training);
    std::int64_t sum = 0;
    for (const UpdateBranch& b : schedule_updates(AnalysedGraph(graph), options).branches) sum += b.at - b.ready;
    return sum;
  };
  EXPECT_EQ(waits(1.0), 0);
  training.weight_bytes = 8192;
  EXPECT_GT(waits(1.0), 0);
  EXPECT_LT(waits(0.1), waits(1.0));
  EXPECT_EQ(waits(0.0), 0);
}

TEST(Arrange, ControlEdgesKeepTheStepDivisible) {
  TrainingGraphOptions training;
  training.layers = 8;
  const Graph graph = training_graph(training);
  const std::vector<char> none(graph.ops.size(), 0);
  const AnalysedGraph analysed(graph);
  const std::size_t alone = insensitive(analysed.dependencies.preds, none).size();
  const std::size_t arranged = insensitive(arrange(analysed, order_problem(analysed), {}).problem.preds, none).size();
  EXPECT_LT(alone, 20u);  // the forward pass: every gradient dangles
  EXPECT_GT(arranged, alone + 8);
}

TEST(Arrange, TheStartOrderIsAnOrderOfTheGraph) {
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = 1 + i % 40;
    const Graph graph = random_graph(random, options);
    const AnalysedGraph analysed(graph);
    const OrderProblem plain = order_problem(analysed);
    const Arranged arranged = arrange(analysed, plain, {});
    EXPECT_NO_THROW(in_order(plain, arranged.ops));
    std::vector<std::int32_t> identity(graph.ops.size());
    std::iota(identity.begin(), identity.end(), 0);
    EXPECT_EQ(peak(arranged.problem, identity), peak(plain, arranged.ops));
  }
}

TEST(Arrange, AnOrderThatBreaksADependencyIsABug) {
  const Graph graph = training_graph({});
  const OrderProblem p = order_problem(AnalysedGraph(graph));
  std::vector<std::int32_t> backwards(graph.ops.size());
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  EXPECT_THROW(in_order(p, backwards), Error);
}

}  // namespace
}  // namespace stowage::testing
