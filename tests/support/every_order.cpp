#include "support/every_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "stowage/check.h"
#include "stowage/plan.h"

namespace stowage::testing {
namespace {

// A plan with all buffers at addresses of their own, but for the reuse pairs in `used`, which share one.
Plan spread_out(const Graph& graph, const std::vector<int>& order, const std::vector<ReusePair>& used) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = graph.align;
  const auto steps = static_cast<std::int32_t>(order.size());
  std::map<BufferId, Placement> live;
  std::vector<std::pair<std::int32_t, std::int32_t>> scratch;
  for (std::int32_t step = 0; step < steps; ++step) {
    plan.steps.push_back(Step::run(OpId(order[step])));
    const Op& op = graph.ops[order[step]];
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list)
        if (live.contains(b)) live[b].to = std::max(live[b].to, step + 1);
    for (const BufferId b : op.creates) live[b] = {b, step, graph.buffer(b).returned ? steps : step + 1, 0};
    for (std::size_t i = 0; i < op.scratch.size(); ++i) scratch.emplace_back(step, static_cast<std::int32_t>(i));
  }
  std::int64_t end = 0;
  for (auto& [b, placement] : live) {
    placement.offset = end;
    end += graph.padded(graph.buffer(b).bytes);
  }
  std::vector<Placement> by_start;
  for (const auto& [b, placement] : live) by_start.push_back(placement);
  std::sort(by_start.begin(), by_start.end(), [](const Placement& a, const Placement& b) { return a.from < b.from; });
  for (Placement& placement : by_start)
    for (const ReusePair& pair : used)
      if (pair.created == placement.buffer)
        placement.offset = std::ranges::find(by_start, pair.read, &Placement::buffer)->offset;
  plan.placements = by_start;
  for (const auto& [step, index] : scratch) {
    plan.scratch.push_back({step, index, end});
    end += graph.padded(graph.ops[order[step]].scratch[index].bytes);
  }
  plan.arena_bytes = end;
  return plan;
}

std::vector<ReusePair> all_pairs(const Graph& graph) {
  std::vector<ReusePair> pairs;
  for (const Op& op : graph.ops) pairs.insert(pairs.end(), op.takeover.begin(), op.takeover.end());
  return pairs;
}

}  // namespace

LeastPeak least_peak(const Graph& graph) {
  std::vector<int> order(graph.ops.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<ReusePair> pairs = all_pairs(graph);
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  LeastPeak least{kNone, kNone, pairs.size() <= 6};
  if (!least.all_pairs) pairs.resize(6);
  do {
    const CheckReport plain = check(graph, spread_out(graph, order, {}));
    if (!plain.valid) continue;
    least.plain = std::min(least.plain, plain.peak_bytes);
    for (unsigned subset = 0; subset < 1U << pairs.size(); ++subset) {
      std::vector<ReusePair> used;
      for (std::size_t i = 0; i < pairs.size(); ++i)
        if ((subset >> i & 1) != 0) used.push_back(pairs[i]);
      const CheckReport report = check(graph, spread_out(graph, order, used));
      if (report.valid) least.with_reuse = std::min(least.with_reuse, report.peak_bytes);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

}  // namespace stowage::testing
