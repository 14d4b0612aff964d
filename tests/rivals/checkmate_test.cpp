// Checkmate's program on chains whose best schedule is known, and on small random graphs beside a search of all
// schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <random>

#include "graph/in_place_reuse.h"
#include "graph/liveness.h"
#include "rivals/checkmate_milp.h"
#include "stowage/error.h"
#include "stowage/planner.h"
#include "support/builder.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/training_graph.h"

namespace stowage::testing {
namespace {

using rivals::checkmate_milp;
using rivals::CheckmateOptions;
using rivals::CheckmateResult;

CheckmateResult within(const Graph& graph, std::int64_t capacity, std::vector<OpId> order = {}) {
  CheckmateOptions options;
  options.budget_bytes = resident_bytes(graph) + capacity;
  options.order = std::move(order);
  return checkmate_milp(graph, options);
}

// Forward a -> b -> c -> d, 10 bytes each, then gradients (10 bytes) that need d, c, b, a in this order. Costs 1 2 4 8
// forward, 16 backward.
Graph chain() {
  GraphBuilder g;
  std::vector<int> x{g.resident(5)};
  for (int i = 0; i < 4; ++i) {
    x.push_back(g.buffer(10));
    g.op({x[i]}, {}, {x[i + 1]}).cost_ns = 1 << i;
  }
  int gradient = g.buffer(10);
  g.op({x[4]}, {}, {gradient}).cost_ns = 16;
  for (int i = 3; i > 0; --i) {
    const int next = i == 1 ? g.returned(10) : g.buffer(10);
    g.op({x[i], gradient}, {}, {next}).cost_ns = 16;
    gradient = next;
  }
  return g.build();
}

TEST(Checkmate, ChainsCostWhatTheyMust) {
  const Graph graph = chain();
  constexpr std::int64_t kOnce = 15 + 4 * 16;
  EXPECT_EQ(within(graph, 50).step_ns, kOnce);      // a b c d and the first gradient
  EXPECT_EQ(within(graph, 40).step_ns, kOnce + 1);  // a again for the last gradient, when c and d are gone
  // Three at a time. Forward keeps one of a, b; the gradient of c needs c, the gradient before and its own bytes.
  const CheckmateResult least = within(graph, 30);
  EXPECT_EQ(least.outcome, Outcome::kOptimal);
  EXPECT_EQ(least.peak_bytes, 30);
  EXPECT_EQ(least.bound_ns, least.step_ns);
  EXPECT_EQ(within(graph, 29).outcome, Outcome::kInfeasible);  // one gradient alone needs 30
  EXPECT_EQ(within(graph, -1).outcome, Outcome::kInfeasible);
}

TEST(Checkmate, WhatIsWrittenInPlaceIsMadeAgainAsAWhole) {
  GraphBuilder g;
  const int weight = g.resident(1), x = g.buffer(10), y = g.buffer(20), z = g.buffer(1), out = g.returned(1);
  g.op({weight}, {}, {x}).cost_ns = 100;
  g.op({}, {x}, {}).cost_ns = 30;
  g.op({}, {}, {y}).cost_ns = 7;
  g.op({y}, {}, {z}).cost_ns = 7;
  g.op({x, z}, {}, {out}).cost_ns = 7;
  EXPECT_EQ(within(g.build(), 31).step_ns, 151);
  EXPECT_EQ(within(g.build(), 30).step_ns, 281);  // both that make x, when y is gone
  g.op({}, {weight}, {});
  EXPECT_EQ(within(g.build(), 30).step_ns, 281);  // the weight changes after the last run

  GraphBuilder early;
  const int w = early.resident(1), a = early.buffer(10), b = early.buffer(20), c = early.buffer(1),
            end = early.returned(1);
  early.op({w}, {}, {a});
  early.op({}, {w}, {});
  early.op({}, {}, {b});
  early.op({b}, {}, {c});
  early.op({a, c}, {}, {end});
  EXPECT_EQ(within(early.build(), 30).outcome, Outcome::kInfeasible);  // a cannot be made from the new weight
}

TEST(Checkmate, TakesTheOrderThatItIsGiven) {
  GraphBuilder g;
  const int a = g.buffer(10), b = g.buffer(10), c = g.returned(1), d = g.returned(1);
  g.op({}, {}, {a}).cost_ns = 5;
  g.op({}, {}, {b}).cost_ns = 6;
  g.op({a}, {}, {c}).cost_ns = 7;
  g.op({b}, {}, {d}).cost_ns = 8;
  EXPECT_EQ(within(g.build(), 12).step_ns, 26 + 5 + 6);  // a is dropped for b, and b for a
  EXPECT_EQ(within(g.build(), 12, {OpId(0), OpId(2), OpId(1), OpId(3)}).step_ns, 26);
  EXPECT_THROW(within(g.build(), 12, {OpId(0), OpId(2), OpId(3), OpId(1)}), Error);
  EXPECT_THROW(within(g.build(), 12, {OpId(0), OpId(2), OpId(1), OpId(1)}), Error);
  EXPECT_THROW(within(g.build(), 12, {OpId(0), OpId(2), OpId(1)}), Error);
}

// Dijkstra over (stage, next op of the stage, version of each buffer on the device).
class AllSchedules {
 public:
  AllSchedules(const Graph& graph, std::int64_t capacity) : graph_(graph), capacity_(capacity) {
    std::vector<int> version(graph.buffers.size(), 0);
    for (const Op& op : graph.ops) {
      seen_.push_back(version);
      for (const auto* list : {&op.writes, &op.creates})
        for (const BufferId b : *list) ++version[b.index()];
    }
    final_ = version;
  }

  std::optional<std::int64_t> least_ns() {
    reach({0, 0, std::vector<int>(graph_.buffers.size(), 0)}, 0);
    while (!open_.empty()) {
      const auto [ns, state] = open_.top();
      open_.pop();
      if (best_[state] < ns) continue;
      if (state.stage == graph_.ops.size()) {
        if (done(state)) return ns;
        continue;
      }
      expand(state, ns);
    }
    return std::nullopt;
  }

 private:
  struct State {
    std::size_t stage, next;
    std::vector<int> held;  // versions; of residents as well
    auto operator<=>(const State&) const = default;
  };

  void reach(const State& state, std::int64_t ns) {
    const auto [at, fresh] = best_.try_emplace(state, ns);
    if (!fresh && at->second <= ns) return;
    at->second = ns;
    open_.push({ns, state});
  }

  bool done(const State& state) const {
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b)
      if (graph_.buffers[b].returned && state.held[b] != final_[b]) return false;
    return true;
  }

  void expand(const State& state, std::int64_t ns) {
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b) {
      if (graph_.buffers[b].resident || state.held[b] == 0) continue;
      State less = state;
      less.held[b] = 0;
      reach(less, ns);
    }
    if (state.next < state.stage) {
      State skipped = state;
      ++skipped.next;
      reach(skipped, ns);
    }
    if (const auto after = run(state)) reach(*after, ns + graph_.ops[state.next].cost_ns);
  }

  std::optional<State> run(const State& state) const {
    const std::size_t k = state.next;
    const Op& op = graph_.ops[k];
    if (k < state.stage && (op.effect || op.once)) return std::nullopt;
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list)
        if (state.held[b.index()] != seen_[k][b.index()]) return std::nullopt;
    State after = state;
    for (const BufferId b : op.creates) after.held[b.index()] = 0;
    std::int64_t live = added_bytes(graph_, op);
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b)
      if (!graph_.buffers[b].resident && after.held[b] != 0) live += graph_.padded(graph_.buffers[b].bytes);
    if (live > capacity_) return std::nullopt;
    for (const BufferId b : op.writes) after.held[b.index()] = seen_[k][b.index()] + 1;
    for (const BufferId b : op.creates) after.held[b.index()] = 1;
    if (++after.next > after.stage) ++after.stage, after.next = 0;
    return after;
  }

  const Graph& graph_;
  std::int64_t capacity_;
  std::vector<std::vector<int>> seen_;  // per op: the version of each buffer that it sees
  std::vector<int> final_;
  std::priority_queue<std::pair<std::int64_t, State>, std::vector<std::pair<std::int64_t, State>>, std::greater<>>
      open_;
  std::map<State, std::int64_t> best_;
};

TEST(Checkmate, IsTheBestOfAllSchedules) {
  int again = 0, none = 0;
  for (int i = 0; i < 80; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    RandomGraphOptions shape;
    shape.ops = 3 + i % 6;
    Graph graph = random_graph(random, shape);
    for (Op& op : graph.ops) op.takeover.clear();  // the program knows none
    const std::int64_t program = program_peak_bytes(graph);
    for (const int percent : {50, 65, 80, 90}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", ops " + std::to_string(shape.ops) + ", percent " +
                   std::to_string(percent));
      const std::int64_t capacity = program * percent / 100;
      const CheckmateResult result = within(graph, capacity);
      const std::optional<std::int64_t> least = AllSchedules(graph, capacity).least_ns();
      if (!least) {
        EXPECT_EQ(result.outcome, Outcome::kInfeasible);
        ++none;
        continue;
      }
      EXPECT_EQ(result.outcome, Outcome::kOptimal);
      EXPECT_EQ(result.step_ns, *least);
      EXPECT_EQ(result.bound_ns, *least);
      EXPECT_LE(result.peak_bytes, capacity);
      EXPECT_GE(result.arena_bytes, result.peak_bytes);
      CheckmateOptions limited;
      limited.budget_bytes = resident_bytes(graph) + capacity;
      limited.start = result.runs;
      limited.nodes = 0;
      EXPECT_EQ(checkmate_milp(graph, limited).step_ns, *least) << "the start was lost";
      again += result.runs.size() > graph.ops.size();
    }
  }
  EXPECT_GT(again, 10);
  EXPECT_GT(none, 10);
}

TEST(Checkmate, BeginsFromTheRunsThatItIsGiven) {
  const Graph graph = training_graph({});
  CheckmateOptions options;
  options.budget_bytes = resident_bytes(graph) + program_peak_bytes(graph);
  std::vector<OpId> twice;  // the first op runs again before the fifth
  for (const OpId op : program_order(graph)) {
    if (op == OpId(4)) twice.emplace_back(0);
    twice.push_back(op);
  }
  options.start = twice;
  EXPECT_EQ(checkmate_milp(graph, options).outcome, Outcome::kOptimal);
  std::swap(options.start[0], options.start[1]);  // no form: not used
  EXPECT_EQ(checkmate_milp(graph, options).outcome, Outcome::kOptimal);
}

TEST(Checkmate, StopsAtALimit) {
  const Graph graph = training_graph({});
  CheckmateOptions options;
  options.budget_bytes = resident_bytes(graph) + program_peak_bytes(graph);
  options.entries = 10;
  EXPECT_EQ(checkmate_milp(graph, options).outcome, Outcome::kUnknown);
}

}  // namespace
}  // namespace stowage::testing
