// What a decision saved, against the plan written anew without it.
#include "report/decisions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "graph/ordered_graph.h"
#include "report/report_data.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/random_graph.h"
#include "support/seed.h"
#include "support/training_graph.h"

namespace stowage::report {
namespace {

using testing::first_seed;
using testing::RandomGraphOptions;

bool uses(const Op& op, BufferId b) {
  for (const auto* list : {&op.reads, &op.writes, &op.creates})
    if (std::find(list->begin(), list->end(), b) != list->end()) return true;
  return false;
}

// The peak of the plan without the steps `gone`, every buffer held from where it is made to its last use before it is
// made again. For graphs whose ops have one tick and nothing to reuse in place. A step that is gone holds nothing.
std::int64_t naive_peak(const Graph& graph, const Plan& plan, const std::set<std::int32_t>& gone) {
  const auto steps = static_cast<std::int32_t>(plan.steps.size());
  std::vector<std::int64_t> live(plan.steps.size());
  for (std::size_t i = 0; i < graph.buffers.size(); ++i) {
    const BufferId b(i);
    if (graph.buffer(b).resident) continue;
    std::vector<std::pair<std::int32_t, std::int32_t>> pieces;
    for (std::int32_t s = 0; s < steps; ++s) {
      if (gone.contains(s)) continue;
      const Step& step = plan.steps[static_cast<std::size_t>(s)];
      const bool run = step.kind == Step::Kind::kRun;
      const auto& creates = run ? graph.op(step.op).creates : std::vector<BufferId>{};
      if ((run && std::find(creates.begin(), creates.end(), b) != creates.end()) ||
          (step.kind == Step::Kind::kSwapIn && step.buffer == b)) {
        pieces.emplace_back(s, s + 1);
      } else if (run && uses(graph.op(step.op), b)) {
        pieces.back().second = std::max(pieces.back().second, s + 1);  // it may be on its way out until later
      } else if (step.kind == Step::Kind::kSwapOut && step.buffer == b) {
        pieces.back().second = std::max(pieces.back().second, step.until);
      }
    }
    if (graph.buffer(b).returned) pieces.back().second = steps;
    for (const auto& [from, to] : pieces)
      for (std::int32_t s = from; s < to; ++s) live[static_cast<std::size_t>(s)] += graph.padded(graph.buffer(b).bytes);
  }
  for (std::size_t s = 0; s < plan.steps.size(); ++s)
    if (plan.steps[s].kind == Step::Kind::kRun)
      for (const Scratch& scratch : graph.op(plan.steps[s].op).scratch) live[s] += graph.padded(scratch.bytes);
  std::int64_t peak = 0;
  for (std::int32_t s = 0; s < steps; ++s)
    if (!gone.contains(s)) peak = std::max(peak, live[static_cast<std::size_t>(s)]);
  return peak;
}

TEST(Decisions, UndoingOneGivesThePeakOfThePlanWrittenWithoutIt) {
  int recomputed = 0, swapped = 0, lowered = 0;
  for (int i = 0; i < 120; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions shape;
    shape.ops = 6 + i % 24;
    shape.insides = false;
    const bool layered = i % 2 == 0;  // many swaps; random graphs have few
    Graph graph = layered ? testing::training_graph({.layers = 3 + i % 7}) : testing::random_graph(random, shape);
    if (layered && i % 4 == 0)
      for (Op& op : graph.ops) op.cost_ns = 30'000;  // a few times a copy's latency, so that copies pay
    seal(graph);
    PlanOptions options;
    options.order_node_budget = options.layout_node_budget = 2'000;
    options.link_gbps = layered ? 0.5 + i % 3 : i % 4 == 1 ? 0.1 : 0;
    options.budget_bytes = resident_bytes(graph) + program_peak_bytes(graph) * (3 + i % 6) / 10;
    const PlanResult result = plan(graph, options);
    if (!result.plan) continue;
    ReportOptions report;
    report.link_gbps = options.link_gbps;
    const PlanData data = plan_data(graph, *result.plan, report);
    // The plan holds something longer than it needs
    if (naive_peak(graph, *result.plan, {}) != data.curve.peak_bytes) continue;
    std::int64_t cost = 0;
    for (const Decision& decision : data.decisions.list) {
      cost += decision.cost_ns;
      if (decision.kind != Decision::Kind::kRecompute && decision.kind != Decision::Kind::kSwap) continue;
      const std::set<std::int32_t> gone(decision.steps.begin(), decision.steps.end());
      (decision.kind == Decision::Kind::kSwap ? swapped : recomputed) += 1;
      const std::int64_t peak = naive_peak(graph, *result.plan, gone);
      EXPECT_EQ(*decision.saved_bytes, peak - data.curve.peak_bytes)
          << "steps " << decision.from << " to " << decision.to;
      lowered += *decision.saved_bytes > 0;
    }
    EXPECT_EQ(data.program_step_ns + cost, data.timing.step_ns);
    EXPECT_EQ(data.timing.step_ns, result.step_ns);
  }
  EXPECT_GT(recomputed, 40);
  EXPECT_GT(swapped, 40);
  EXPECT_GT(lowered, 20);
}

TEST(Decisions, StagesLeadFromTheProgramToThePlan) {
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions shape;
    shape.ops = 5 + i % 20;
    const Graph graph = testing::random_graph(random, shape);
    const PlanResult result = plan(graph, {});
    const PlanData data = plan_data(graph, *result.plan, {});
    const Stages& stages = data.decisions.stages;
    std::vector<OpId> order;
    for (const Step& step : result.plan->steps) order.push_back(step.op);
    EXPECT_EQ(stages.program, result.program_peak_bytes);
    EXPECT_EQ(stages.order, peak_bytes(graph, order));
    EXPECT_EQ(stages.recompute, stages.order);  // nothing is recomputed or swapped here,
    EXPECT_EQ(stages.swap, stages.order);  // so undoing all in-place reuse must give the peak of the order without any
    EXPECT_EQ(stages.in_place_reuse, result.peak_bytes);
    EXPECT_EQ(data.program_curve.peak_bytes, result.program_peak_bytes);
  }
}

Graph two_branches() {
  // Two large buffers that the program makes side by side; reordered, one goes before the other comes.
  Graph graph;
  graph.name = "branches";
  graph.align = 1;
  const auto buffer = [&](const char* name, std::int64_t bytes) {
    Buffer b;
    b.name = name;
    b.bytes = bytes;
    graph.buffers.push_back(b);
    return BufferId(graph.buffers.size() - 1);
  };
  const auto op = [&](const char* name, std::vector<BufferId> reads, std::vector<BufferId> creates) {
    Op o;
    o.name = o.target = name;
    o.reads = std::move(reads);
    o.creates = std::move(creates);
    o.meta = std::string(R"({"line":"net.py:)") + name + "\"}";
    graph.ops.push_back(o);
  };
  const BufferId a = buffer("a", 100), b = buffer("b", 90), x = buffer("x", 1), y = buffer("y", 1),
                 out = buffer("out", 1);
  graph.buffers[out.index()].returned = true;
  op("make a", {}, {a});
  op("make b", {}, {b});
  op("use a", {a}, {x});
  op("use b", {b}, {y});
  op("join", {x, y}, {out});
  validate(graph);
  return graph;
}

TEST(Moves, OneMoveThatSavesIsFoundAndUndone) {
  const Graph graph = two_branches();
  const PlanResult result = plan(graph, {});
  const PlanData data = plan_data(graph, *result.plan, {});
  EXPECT_EQ(data.program_curve.peak_bytes, 191);
  EXPECT_EQ(data.curve.peak_bytes, 101);
  ASSERT_EQ(data.decisions.list.size(), 1U);
  const Decision& move = data.decisions.list.front();
  EXPECT_EQ(move.kind, Decision::Kind::kMove);
  EXPECT_EQ(move.saved_bytes, 90);
}

TEST(ReportData, SourceLinesComeFromTheMeta) {
  Op op;
  EXPECT_EQ(source_line(op), "");
  op.meta = R"({"line":"a \"b\".py:12"})";
  EXPECT_EQ(source_line(op), "a \"b\".py:12");
  op.meta = R"({"line":12})";
  EXPECT_EQ(source_line(op), "");
}

}  // namespace
}  // namespace stowage::report
