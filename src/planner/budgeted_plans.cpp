#include "planner/budgeted_plans.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "order/greedy.h"

namespace stowage {
namespace {

// What recomputation and swapping start from: the order of least peak, program order, and program order where whatever
// lowers live bytes runs at once (what is dropped from the peak uncovers the heaps beside it: gradients that wait for
// their updates).
std::vector<std::vector<OpId>> base_orders(const OrderModel& model, const std::vector<OpId>& order, bool keep_order) {
  std::vector<std::vector<OpId>> orders{order};
  if (keep_order) return orders;
  const Ordering relieved =
      greedy(model.plain, GreedyRule::kProgramOrder, std::numeric_limits<std::int64_t>::max() / 4);
  for (std::vector<OpId> other : {as_ops(relieved.ops), model.program.order})
    if (std::find(orders.begin(), orders.end(), other) == orders.end()) orders.push_back(std::move(other));
  return orders;
}

}  // namespace

BudgetedPlans::BudgetedPlans(const OrderModel& model, const PlanOptions& options, const std::vector<OpId>& order,
                             const PlanResult& unlimited, std::int64_t arena_bytes,
                             const std::function<bool()>& should_stop)
    : work_(options.budget_work),
      recipes_(model.graph, options.takeover),
      orders_(base_orders(model, order, options.keep_order)),
      ladder_(recipes_, orders_, unlimited.budget_bound_bytes - unlimited.resident_bytes, arena_bytes,
              fit_options(options, should_stop)) {}

budget::FitOptions BudgetedPlans::fit_options(const PlanOptions& options, const std::function<bool()>& should_stop) {
  budget::FitOptions how;
  how.link = {options.link_gbps};
  how.seed = options.seed;
  how.spent = &spent_;
  how.should_stop = should_stop;
  if (work_ > 0) {
    how.bound_work = std::min(how.bound_work, work_ / 4);
    how.should_stop = [this, should_stop] { return spent_all() || (should_stop && should_stop()); };
  }
  return how;
}

std::optional<budget::Fitted> BudgetedPlans::within(std::int64_t budget_bytes, bool limited, PlanResult& result) {
  limited_ = limited;
  const std::int64_t capacity = budget_bytes - result.resident_bytes;
  result.budget_bound_bytes = result.resident_bytes + ladder_.least_capacity();
  std::optional<budget::Fitted> fitted = ladder_.best_within(capacity);
  if (!fitted) {
    result.smallest_bytes = result.resident_bytes + ladder_.smallest();
    return fitted;
  }
  const budget::Schedule& schedule = fitted->schedule;
  result.step_bound_ns = std::max(result.program_step_ns, ladder_.bound_ns(capacity));
  result.step_ns = schedule.step_ns;
  result.recomputed_ops = schedule.recomputed_ops;
  result.recompute_ns = schedule.recompute_ns;
  result.swapped_bytes = schedule.swapped_bytes;
  result.smallest_bytes = result.resident_bytes + fitted->layout.height_bytes;
  return fitted;
}

}  // namespace stowage
