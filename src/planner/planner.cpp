#include "stowage/planner.h"

#include <algorithm>
#include <chrono>

#include "graph/dependencies.h"
#include "graph/liveness.h"
#include "order/bound.h"
#include "order/must_live.h"
#include "planner/assemble.h"
#include "stowage/check.h"
#include "stowage/error.h"

namespace stowage {
namespace {

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

std::int64_t lower_bound_bytes(const Graph& graph) {
  const Dependencies deps = dependencies(graph);
  const std::vector<std::int64_t> live = must_live(bound_problem(graph, deps, uses(graph)));
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

PlanResult plan(const Graph& graph, const PlanOptions& options) {
  const Stopwatch watch;
  PlanResult result;
  result.resident_bytes = resident_bytes(graph);
  result.program_peak_bytes = program_peak_bytes(graph);
  for (const Op& op : graph.ops) result.program_step_ns += op.cost_ns;
  result.step_ns = result.program_step_ns;
  result.lower_bound_bytes = lower_bound_bytes(graph);
  const std::vector<OpId> order = program_order(graph);
  result.peak_bytes = peak_bytes(graph, order);
  result.seconds.order = watch.seconds();

  const Stopwatch layout_watch;
  Timeline times = timeline(graph, order);
  LayoutOptions layout_options;
  layout_options.align = graph.align;
  layout_options.node_budget = options.layout_node_budget;
  layout_options.seed = options.seed;
  const LayoutResult addresses = layout(times.items, layout_options);
  result.plan = assemble(graph, order, std::move(times), addresses);
  result.seconds.layout = layout_watch.seconds();

  const Stopwatch verify_watch;
  const CheckReport report = check(graph, *result.plan);
  if (!report.valid) throw Error("the planner made a plan that is not valid: " + report.message);
  result.seconds.verify = verify_watch.seconds();

  result.gap = result.lower_bound_bytes == 0 ? 0.0
                                             : static_cast<double>(result.peak_bytes) / static_cast<double>(result.lower_bound_bytes) - 1;
  result.outcome = result.peak_bytes == result.lower_bound_bytes ? Outcome::kOptimal : Outcome::kFeasible;
  result.smallest_bytes = result.resident_bytes + result.plan->arena_bytes;
  if (options.budget_bytes && result.smallest_bytes > *options.budget_bytes) {
    result.outcome = Outcome::kUnknown;
    result.plan.reset();
  }
  result.seconds.total = watch.seconds();
  return result;
}

}  // namespace stowage
