// The layout stage of ROAM: from the steps of its order to the time axis of the layout.
#pragma once

#include <functional>

#include "planner/lay_out.h"

namespace stowage {

// Uses no in-place reuse. Throws SolverMissing.
LaidOut lay_out_by_roam(const OrderModel& model, const ChosenOrders& orders, const PlanOptions& options,
                        const std::function<bool()>& should_stop);

}  // namespace stowage
