#include "planner/assemble.h"

#include <algorithm>
#include <numeric>

#include "graph/liveness.h"

namespace stowage {
namespace {

std::vector<std::int64_t> step_starts(const Graph& graph, std::span<const OpId> order) {
  std::vector<std::int64_t> start(order.size() + 1, 0);
  for (std::size_t step = 0; step < order.size(); ++step) start[step + 1] = start[step] + graph.op(order[step]).ticks;
  return start;
}

}  // namespace

Timeline timeline(const Graph& graph, std::span<const OpId> order) {
  Timeline result;
  const std::vector<Lifetime> live = lifetimes(graph, order);
  const std::vector<std::int64_t> start = step_starts(graph, order);
  std::vector<LayoutItem> scratch_items;
  for (std::size_t step = 0; step < order.size(); ++step) {
    const Op& op = graph.op(order[step]);
    std::vector<std::pair<BufferId, std::int32_t>> born;
    for (std::size_t i = 0; i < op.creates.size(); ++i) born.emplace_back(op.creates[i], born_tick(op, i));
    std::sort(born.begin(), born.end());
    for (const auto& [buffer, tick] : born) {
      const Lifetime span = live[buffer.index()];
      result.placements.push_back({buffer, span.from, span.to, 0});
      result.items.push_back({start[step] + tick, start[span.to], graph.padded(graph.buffer(buffer).bytes)});
    }
    for (std::size_t i = 0; i < op.scratch.size(); ++i) {
      const Scratch& s = op.scratch[i];
      result.scratch.push_back({static_cast<std::int32_t>(step), static_cast<std::int32_t>(i), 0});
      scratch_items.push_back({start[step] + s.from, start[step] + s.to, graph.padded(s.bytes)});
    }
  }
  result.items.insert(result.items.end(), scratch_items.begin(), scratch_items.end());
  return result;
}

Plan assemble(const Graph& graph, std::span<const OpId> order, Timeline timeline, const LayoutResult& layout) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = graph.align;
  plan.arena_bytes = layout.height_bytes;
  for (const OpId op : order) plan.steps.push_back(Step::run(op));
  for (std::size_t i = 0; i < timeline.placements.size(); ++i) timeline.placements[i].offset = layout.offsets[i];
  for (std::size_t i = 0; i < timeline.scratch.size(); ++i)
    timeline.scratch[i].offset = layout.offsets[timeline.placements.size() + i];
  plan.placements = std::move(timeline.placements);
  plan.scratch = std::move(timeline.scratch);
  return plan;
}

}  // namespace stowage
