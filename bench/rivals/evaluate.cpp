#include "rivals/evaluate.h"

#include <numeric>
#include <utility>

#include "layout/timeline.h"
#include "rivals/greedy_fit.h"
#include "stowage/check.h"
#include "stowage/error.h"

namespace stowage::rivals {
namespace {

// Every item above the one before: valid for any order.
std::vector<std::int64_t> stacked(const std::vector<LayoutItem>& items, std::int64_t align) {
  std::vector<std::int64_t> offsets;
  std::int64_t top = 0;
  for (const LayoutItem& item : items)
    offsets.push_back(std::exchange(top, top + (item.bytes + align - 1) / align * align));
  return offsets;
}

}  // namespace

Evaluation evaluate(const Graph& graph, std::span<const OpId> order, const LayoutRule& layout) {
  const AnalysedGraph analysed(graph);
  Timeline times = timeline(OrderedGraph(analysed, {order.begin(), order.end()}), {});
  LayoutResult addresses;
  addresses.offsets = layout(times.items, graph.align);
  addresses.height_bytes = height(times.items, addresses.offsets);
  const Plan plan = assemble(graph, std::move(times), addresses);
  const CheckReport report = check(graph, plan);
  if (!report.valid) throw Error("a rival's plan is not valid: " + report.message);
  return {report.peak_bytes, plan.arena_bytes};
}

std::int64_t evaluate_peak(const Graph& graph, std::span<const OpId> order) {
  return evaluate(graph, order, stacked).peak_bytes;
}

}  // namespace stowage::rivals
