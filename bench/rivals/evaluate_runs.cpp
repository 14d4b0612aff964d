#include "rivals/evaluate_runs.h"

#include <vector>

#include "planner/assemble.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/plan.h"

namespace stowage::rivals {
namespace {

constexpr std::int64_t kLayoutNodes = 200'000;

// Placements and scratch without addresses.
Plan plan_of(const Graph& graph, std::span<const OpId> runs) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = graph.align;
  std::vector<std::int32_t> latest(graph.buffers.size(), -1);  // placement
  for (std::int32_t step = 0; step < static_cast<std::int32_t>(runs.size()); ++step) {
    const Op& op = graph.op(runs[step]);
    plan.steps.push_back(Step::run(runs[step]));
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list)
        if (latest[b.index()] >= 0) plan.placements[latest[b.index()]].to = step + 1;
    for (const BufferId b : op.creates) {
      latest[b.index()] = static_cast<std::int32_t>(plan.placements.size());
      plan.placements.push_back({b, step, step + 1, 0});
    }
    for (std::size_t i = 0; i < op.scratch.size(); ++i) plan.scratch.push_back({step, static_cast<std::int32_t>(i), 0});
  }
  for (std::size_t b = 0; b < graph.buffers.size(); ++b)
    if (graph.buffers[b].returned && latest[b] >= 0)
      plan.placements[latest[b]].to = static_cast<std::int32_t>(runs.size());
  return plan;
}

// One per placement, then one per scratch.
std::vector<LayoutItem> items_of(const Graph& graph, const Plan& plan, std::span<const OpId> runs) {
  const std::vector<std::int64_t> start = step_starts(graph, runs);
  std::vector<LayoutItem> items;
  for (const Placement& p : plan.placements) {
    const Op& op = graph.op(runs[p.from]);
    std::size_t created = 0;
    while (op.creates[created] != p.buffer) ++created;
    items.push_back({start[p.from] + born_tick(op, created), start[p.to], graph.padded(graph.buffer(p.buffer).bytes)});
  }
  for (const ScratchPlacement& p : plan.scratch) {
    const Scratch& s = graph.op(runs[p.step]).scratch[p.index];
    items.push_back({start[p.step] + s.from, start[p.step] + s.to, graph.padded(s.bytes)});
  }
  return items;
}

}  // namespace

Evaluation evaluate_runs(const Graph& graph, std::span<const OpId> runs) {
  Plan plan = plan_of(graph, runs);
  LayoutOptions options;
  options.align = graph.align;
  options.node_budget = kLayoutNodes;
  const LayoutResult addresses = layout(items_of(graph, plan, runs), options);
  plan.arena_bytes = addresses.height_bytes;
  for (std::size_t i = 0; i < plan.placements.size(); ++i) plan.placements[i].offset = addresses.offsets[i];
  for (std::size_t i = 0; i < plan.scratch.size(); ++i)
    plan.scratch[i].offset = addresses.offsets[plan.placements.size() + i];
  const CheckReport report = check(graph, plan);
  if (!report.valid) throw Error("a rival's runs are not valid: " + report.message);
  return {report.peak_bytes, plan.arena_bytes};
}

}  // namespace stowage::rivals
