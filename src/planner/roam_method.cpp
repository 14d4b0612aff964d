#include "planner/roam_method.h"

#include "roam/layout.h"
#include "roam/order.h"
#include "stowage/stopwatch.h"

namespace stowage {
namespace {

// From steps to the time axis of the layout items.
std::vector<roam::TimedShell> timed(const std::vector<roam::Shell>& shells, const std::vector<std::int64_t>& start) {
  std::vector<roam::TimedShell> result;
  for (const roam::Shell& s : shells)
    result.push_back({start[s.forward_from], start[s.forward_to], start[s.backward_from], start[s.backward_to]});
  return result;
}

}  // namespace

RoamCandidate plan_by_roam(const Graph& graph, const PlanOptions& options, const std::function<bool()>& should_stop) {
  RoamCandidate result;
  const Stopwatch order_watch;
  roam::Ordered ordered = roam::find_order(graph, options.roam, options.solver_library, should_stop, result.stats);
  result.order_seconds = order_watch.seconds();

  const Stopwatch layout_watch;
  result.times = timeline(graph, ordered.order, {});
  const std::vector<std::int64_t> start = step_starts(graph, ordered.order);
  const std::int64_t loss = ordered.order.empty() ? 0 : start[ordered.loss + 1];
  if (!options.roam.tree) ordered.shells.clear();
  result.addresses = roam::lay_out(result.times.items, graph.align, loss, timed(ordered.shells, start), options.roam,
                                   options.solver_library, should_stop, result.stats);
  result.order = std::move(ordered.order);
  result.layout_seconds = layout_watch.seconds();
  return result;
}

}  // namespace stowage
