// The layout stage: of the orders that were chosen, the one whose addresses need the smallest arena, with the in-place
// reuse that serves it.
//
//   orders, all of one peak ──▶ each with several sets of pairs, quickly ──▶ the most promising with the whole effort
//                                                                            │ still holes
//                               the smallest arena of all ◀── orders without reuse, program order
//
// What a narrower buffer leaves of a larger one that it lies over is used by a simpler search than the rest, so more
// reuse can mean more holes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "layout/timeline.h"
#include "planner/choose_orders.h"

namespace stowage {

// One laid-out order.
struct LaidOut {
  std::shared_ptr<const OrderedGraph> ordered;
  std::vector<ReuseAt> used;
  Timeline timeline;
  LayoutResult layout;
  std::optional<RoamStats> stats = {};  // of Method::kRoam
};

// Adds what the searches looked at to `work`. Throws SolverMissing.
LaidOut lay_out(const OrderModel& model, const ChosenOrders& orders, const PlanOptions& options,
                const std::function<bool()>& should_stop, std::int64_t& work);

}  // namespace stowage
