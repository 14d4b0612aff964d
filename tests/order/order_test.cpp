// The parts of the order search against brute force on random problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "graph/analysed_graph.h"
#include "order/bound.h"
#include "order/contract.h"
#include "order/critical.h"
#include "order/decide.h"
#include "order/forced.h"
#include "order/greedy.h"
#include "order/min_cut.h"
#include "order/must_live.h"
#include "order/pinch.h"
#include "order/projection.h"
#include "order/prove.h"
#include "order/select.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/state_walk.h"

namespace stowage::testing {
namespace {

class OrderSearch : public ::testing::TestWithParam<int> {
 protected:
  // 60 random problems of up to 11 ops, each with its seed in the trace.
  template <class Body>
  void for_each_problem(Body body) {
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
      SCOPED_TRACE("seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      RandomGraphOptions options;
      options.ops = GetParam();
      const Graph graph = random_graph(random, options);
      body(order_problem(AnalysedGraph(graph)));
    }
  }
};

void expect_order(const OrderProblem& p, const Ordering& found) {
  std::vector<std::int32_t> position(p.ops, -1);
  for (std::size_t i = 0; i < found.ops.size(); ++i) position[found.ops[i]] = static_cast<std::int32_t>(i);
  ASSERT_EQ(found.ops.size(), static_cast<std::size_t>(p.ops));
  for (std::int32_t op = 0; op < p.ops; ++op) {
    EXPECT_GE(position[op], 0);
    for (const std::int32_t q : p.preds[op]) EXPECT_LT(position[q], position[op]);
  }
  EXPECT_EQ(found.peak, peak(p, found.ops));
}

TEST_P(OrderSearch, CutsAreTheLeastStepsAndMustLiveIsBelowThem) {
  for_each_problem([](const OrderProblem& p) {
    const Brute brute = StateWalk(p).run();
    const std::vector<std::int64_t> live = must_live(p);
    for (std::int32_t op = 0; op < p.ops; ++op) {
      std::int64_t work = 1'000'000'000;
      for (const CutSide side : {CutSide::kSmallest, CutSide::kLargest})
        EXPECT_EQ(min_cut(p, op, side, work).step_bytes, brute.step[op]) << "op " << op;
      EXPECT_LE(live[op], brute.step[op]) << "op " << op;
    }
  });
}

TEST_P(OrderSearch, TimeBackwardsHasTheSamePeaksAndBounds) {
  for_each_problem([](const OrderProblem& p) {
    const OrderProblem back = reversed(p);
    EXPECT_EQ(StateWalk(back).run().peak, StateWalk(p).run().peak);
    std::vector<std::int64_t> live = must_live(back);
    std::reverse(live.begin(), live.end());
    EXPECT_EQ(live, must_live(p));
    const OrderProblem again = reversed(back);
    EXPECT_EQ(again.extra, p.extra);
    EXPECT_EQ(again.preds.items.size(), p.preds.items.size());
  });
}

TEST_P(OrderSearch, ForcedMovesLoseNothing) {
  for_each_problem([](const OrderProblem& p) {
    const std::int64_t best = StateWalk(p).run().peak;
    std::vector<char> ran(p.ops, 0);
    std::vector<std::int32_t> rest;
    for (const std::int32_t op : forced_prefix(p, best)) ran[op] = 1;
    for (std::int32_t op = 0; op < p.ops; ++op)
      if (!ran[op]) rest.push_back(op);
    const OrderProblem after = restricted(p, rest, ran);
    EXPECT_LE(StateWalk(after).run().peak, best);
    const std::vector<std::int32_t> late = forced_suffix(after, best);
    std::vector<std::int32_t> core;
    for (std::int32_t op = 0; op < after.ops; ++op)
      if (std::ranges::find(late, op) == late.end()) core.push_back(op);
    EXPECT_LE(StateWalk(restricted(after, core, std::vector<char>(after.ops, 0))).run().peak, best);
  });
}

TEST_P(OrderSearch, EverySearchGivesAnOrderAndItsPeak) {
  for_each_problem([](const OrderProblem& p) {
    const std::int64_t best = StateWalk(p).run().peak;
    for (const std::int64_t limit : {std::int64_t{0}, best, 2 * best}) {
      for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise})
        expect_order(p, greedy(p, rule, limit));
      for (const CutSide side : {CutSide::kSmallest, CutSide::kLargest})
        for (const int repairs : {0, 12}) {
          std::int64_t work = 1'000'000'000, none = 0;
          expect_order(p, pinch(p, limit, {side, repairs}, work).order);
          expect_order(p, pinch(p, limit, {side, repairs}, none).order);
        }
    }
  });
}

TEST_P(OrderSearch, ProjectionIsExactAndItsBoundHoldsAtAnyTime) {
  for_each_problem([](const OrderProblem& p) {
    const std::int64_t best = StateWalk(p).run().peak;
    const Ordering start = greedy(p, GreedyRule::kProgramOrder, 0);
    std::vector<std::int32_t> members;
    for (std::int64_t work : {std::int64_t{300}, std::int64_t{3'000}, std::int64_t{1'000'000'000}}) {
      const bool enough = work > 1'000'000;
      const BoundedOrder result = project(p, start, 0, members, work, {});
      expect_order(p, result.order);
      EXPECT_LE(result.bound, best);
      EXPECT_GE(result.order.peak, best);
      if (!enough) continue;
      EXPECT_EQ(result.bound, best);
      EXPECT_EQ(result.order.peak, best);
    }
  });
}

TEST_P(OrderSearch, DecisionsAreRightInBothDirectionsOfTime) {
  for_each_problem([](const OrderProblem& p) {
    const std::int64_t best = StateWalk(p).run().peak;
    for (const OrderProblem& one : {p, reversed(p)}) {
      std::int64_t work = 1'000'000'000;
      const DecisionResult yes = decide(one, best, work);
      ASSERT_EQ(yes.decision, Decision::kYes);
      EXPECT_LE(peak(one, yes.order), best);
      expect_order(one, {yes.order, peak(one, yes.order)});
      for (const std::int64_t limit : {best - 1, best - best / 4 - 1, std::int64_t{0}}) {
        if (limit < 0 || limit >= best) continue;
        const DecisionResult no = decide(one, limit, work);
        EXPECT_EQ(no.decision, Decision::kNo);
        EXPECT_GT(no.next_limit, limit);
        EXPECT_LE(no.next_limit, best);
      }
    }
  });
}

TEST_P(OrderSearch, ContractionKeepsTheLeastPeak) {
  for_each_problem([](const OrderProblem& p) {
    const Contracted small = contracted(p);
    const std::int64_t best = StateWalk(p).run().peak;
    EXPECT_EQ(StateWalk(small.problem).run().peak, best);
    std::int64_t work = 1'000'000'000;
    const DecisionResult yes = decide(small.problem, best, work);
    ASSERT_EQ(yes.decision, Decision::kYes);
    Ordering order;
    for (const std::int32_t op : yes.order)
      order.ops.insert(order.ops.end(), small.ops[op].begin(), small.ops[op].end());
    order.peak = peak(p, order.ops);
    expect_order(p, order);
    EXPECT_EQ(order.peak, best);
  });
}

TEST_P(OrderSearch, SelectedPrecedencesHoldInEveryOrderUnderTheLimit) {
  for_each_problem([](const OrderProblem& p) {
    const std::int64_t best = StateWalk(p).run().peak;
    const std::vector<std::int64_t> live = must_live(p);
    for (const std::int64_t limit : {best, best - 1, std::ranges::max(live), best / 2}) {
      std::int64_t work = 1'000'000'000;
      const Selection selected = select(p, limit, work);
      EXPECT_GT(selected.next_limit, limit);
      if (selected.contradiction) {
        EXPECT_LT(limit, best);
        EXPECT_LE(selected.next_limit, best);
      }
      for (const Precedence& edge : selected.edges) {  // who breaks one pays for it
        const std::vector<Precedence> turned = {{edge.to, edge.from}};
        const auto broken = with_precedence(p, turned);
        if (!broken) continue;
        EXPECT_GE(StateWalk(broken->problem).run().peak, selected.next_limit) << edge.from << " before " << edge.to;
      }
    }
  });
}

TEST_P(OrderSearch, CriticalOpsAreSortedAndColumnsAgreeWithTheWhole) {
  for_each_problem([](const OrderProblem& p) {
    const std::vector<std::int64_t> all = must_live(p);
    std::vector<std::int32_t> odd;
    for (std::int32_t op = 1; op < p.ops; op += 2) odd.push_back(op);
    const std::vector<std::int64_t> some = must_live(p, odd);
    for (std::size_t i = 0; i < odd.size(); ++i) EXPECT_EQ(some[i], all[odd[i]]);
    std::int64_t work = 1'000'000'000;
    const std::vector<CriticalOp> critical = critical_ops(p, work);
    ASSERT_EQ(critical.size(), all.size());
    for (std::size_t i = 0; i < critical.size(); ++i) {
      EXPECT_EQ(critical[i].bytes, all[critical[i].op]);
      EXPECT_GE(critical[i == 0 ? 0 : i - 1].bytes, critical[i].bytes);
    }
  });
}

TEST_P(OrderSearch, ProofsReachTheLeastPeakFromAnyStart) {
  for_each_problem([](const OrderProblem& p) {
    const std::int64_t best = StateWalk(p).run().peak;
    std::int64_t work = 1'000'000'000;
    const BoundedOrder result = prove(p, greedy(p, GreedyRule::kProgramOrder, 0), 0, work, {});
    expect_order(p, result.order);
    EXPECT_LE(result.bound, best);
    EXPECT_GE(result.order.peak, best);
    std::vector<std::int32_t> members;
    Ordering optimum = project(p, result.order, 0, members, work, {}).order;
    EXPECT_EQ(prove(p, optimum, 0, work, {}).bound, best);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, OrderSearch, ::testing::Values(2, 5, 8, 11));

}  // namespace
}  // namespace stowage::testing
