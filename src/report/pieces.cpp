#include "report/pieces.h"

#include <algorithm>
#include <numeric>

namespace stowage::report {

Pieces::Pieces(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan), again_(plan.steps.size()) {
  std::vector<std::int32_t> order(plan.placements.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int32_t p) {
    const Placement& placement = plan.placements[static_cast<std::size_t>(p)];
    return std::pair(placement.buffer, placement.from);
  };
  std::ranges::sort(order, {}, key);
  for (std::size_t b = 0, next = 0; b < graph.buffers.size(); ++b) {
    for (; next < order.size() && key(order[next]).first == BufferId(b); ++next)
      by_buffer_.items.push_back(order[next]);
    by_buffer_.close_row();
  }
  IdVector<OpId, bool> ran(graph.ops.size());
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    if (plan.steps[s].kind != Step::Kind::kRun) continue;
    again_[s] = ran[plan.steps[s].op];
    ran[plan.steps[s].op] = true;
  }
}

std::int32_t Pieces::covering(BufferId buffer, std::int32_t step) const {
  const std::span<const std::int32_t> row = of(buffer);
  const auto begins = [&](std::int32_t p) { return plan_.placements[static_cast<std::size_t>(p)].from; };
  const auto after = std::ranges::upper_bound(row, step, {}, begins);
  if (after == row.begin() || plan_.placements[static_cast<std::size_t>(*(after - 1))].to <= step) return -1;
  return static_cast<std::int32_t>(after - row.begin()) - 1;
}

BufferId Pieces::reused_input(const Placement& created) const {
  const Step& step = plan_.steps[static_cast<std::size_t>(created.from)];
  if (step.kind != Step::Kind::kRun) return {};
  for (const ReusePair& pair : graph_.op(step.op).takeover) {
    if (pair.created != created.buffer || graph_.buffer(pair.created).bytes == 0) continue;
    const std::int32_t rank = covering(pair.read, created.from);
    if (rank < 0) continue;
    const Placement& read = plan_.placements[static_cast<std::size_t>(of(pair.read)[static_cast<std::size_t>(rank)])];
    if (read.to == created.from + 1 && read.offset == created.offset) return pair.read;
  }
  return {};
}

}  // namespace stowage::report
