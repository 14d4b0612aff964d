// The orders that the layout chooses from: by search, the program's own, or ROAM's.
#pragma once

#include <functional>

#include "order/search.h"
#include "roam/order.h"
#include "stowage/planner.h"

namespace stowage {

struct ChosenOrders {
  OrderResult found;
  roam::Ordered roam;  // of Method::kRoam: what its layout needs to know
  RoamStats stats;
};

// Throws Error where the method decides the order and it is to be kept; SolverMissing.
ChosenOrders choose_orders(const OrderModel& model, const PlanOptions& options,
                           const std::function<bool()>& should_stop);

// By search within `work`, or the program's own; with options.takeover or without. The bound is that of the search.
OrderResult search_orders(const OrderModel& model, const PlanOptions& options, std::int64_t work,
                          const std::function<bool()>& should_stop);

}  // namespace stowage
