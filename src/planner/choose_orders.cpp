#include "planner/choose_orders.h"

#include "planner/effort.h"
#include "stowage/error.h"

namespace stowage {

OrderResult search_orders(const OrderModel& model, const PlanOptions& options, std::int64_t work,
                          const std::function<bool()>& should_stop) {
  if (!options.keep_order) return find_order(model, {work, should_stop, options.takeover});
  OrderResult program;
  program.orders = {model.program.order};
  program.peak_bytes = options.takeover ? peak_bytes(model.program, model.program.reuse) : model.program_peak_bytes;
  return program;
}

ChosenOrders choose_orders(const OrderModel& model, const PlanOptions& options,
                           const std::function<bool()>& should_stop) {
  const std::int64_t work = Effort(model.graph.graph.ops.size(), options).order_work;
  ChosenOrders result;
  if (options.method == Method::kRoam) {
    if (options.keep_order) throw Error("method roam decides the order: it cannot keep the program's");
    result.roam =
        roam::find_order(model.graph, model.plain, options.roam, options.solver_library, should_stop, result.stats);
    result.found.orders = {result.roam.order};
  } else {
    result.found = search_orders(model, options, work, should_stop);
    if (!options.keep_order) return result;
  }
  result.found.bound_bytes = root_bound(model, work);
  return result;
}

}  // namespace stowage
