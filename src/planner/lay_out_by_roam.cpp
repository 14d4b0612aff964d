#include "planner/lay_out_by_roam.h"

#include <utility>

#include "roam/layout.h"

namespace stowage {
namespace {

std::vector<roam::TimedShell> timed(const std::vector<roam::Shell>& shells, const std::vector<std::int64_t>& start) {
  std::vector<roam::TimedShell> result;
  for (const roam::Shell& s : shells)
    result.push_back({start[s.forward_from], start[s.forward_to], start[s.backward_from], start[s.backward_to]});
  return result;
}

}  // namespace

LaidOut lay_out_by_roam(const OrderModel& model, const ChosenOrders& orders, const PlanOptions& options,
                        const std::function<bool()>& should_stop) {
  const roam::Ordered& ordered = orders.roam;
  LaidOut result;
  result.stats = orders.stats;
  result.ordered = std::make_shared<const OrderedGraph>(model.graph, ordered.order);
  result.timeline = timeline(*result.ordered, {});
  const std::vector<std::int64_t>& start = result.timeline.start;
  const std::int64_t loss = result.timeline.steps.empty() ? 0 : start[ordered.loss + 1];
  std::vector<roam::TimedShell> shells;
  if (options.roam.tree) shells = timed(ordered.shells, start);
  result.layout = roam::lay_out(result.timeline.items, model.graph.graph.align, loss, shells, options.roam,
                                options.solver_library, should_stop, *result.stats);
  return result;
}

}  // namespace stowage
