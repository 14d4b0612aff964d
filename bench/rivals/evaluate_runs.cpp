#include "rivals/evaluate_runs.h"

#include <utility>
#include <vector>

#include "layout/timeline.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/plan.h"

namespace stowage::rivals {
namespace {

constexpr std::int64_t kLayoutNodes = 200'000;

// A copy of a buffer lives from the run that creates it up to its last use before the next such run.
std::vector<Piece> pieces_of(const Graph& graph, std::span<const OpId> runs) {
  std::vector<Piece> pieces;
  IdVector<BufferId, std::int32_t> latest(graph.buffers.size(), -1);
  for (std::int32_t step = 0; step < static_cast<std::int32_t>(runs.size()); ++step) {
    const Op& op = graph.op(runs[step]);
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list)
        if (latest[b] >= 0) pieces[latest[b]].to = step + 1;
    for (std::size_t i = 0; i < op.creates.size(); ++i) {
      latest[op.creates[i]] = static_cast<std::int32_t>(pieces.size());
      pieces.push_back({op.creates[i], step, step + 1, born_tick(op, i), {}});
    }
  }
  for (const BufferId b : latest.ids())
    if (graph.buffer(b).returned && latest[b] >= 0) pieces[latest[b]].to = static_cast<std::int32_t>(runs.size());
  return pieces;
}

}  // namespace

Evaluation evaluate_runs(const Graph& graph, std::span<const OpId> runs) {
  std::vector<Step> steps;
  for (const OpId op : runs) steps.push_back(Step::run(op));
  Timeline times = timeline(graph, std::move(steps), pieces_of(graph, runs));
  LayoutOptions options;
  options.align = graph.align;
  options.node_budget = kLayoutNodes;
  const LayoutResult addresses = layout(times.items, options);
  const Plan plan = assemble(graph, std::move(times), addresses);
  const CheckReport report = check(graph, plan);
  if (!report.valid) throw Error("a rival's runs are not valid: " + report.message);
  return {report.peak_bytes, plan.arena_bytes};
}

}  // namespace stowage::rivals
