// Recomputation and swapping within any limits of one graph: they share the ladder of plans, and an allowance of work.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "budget/ladder.h"
#include "order/model.h"
#include "stowage/planner.h"

namespace stowage {

class BudgetedPlans {
 public:
  // `order` is the one of least peak, `unlimited` the plan without a limit, which takes `arena_bytes`.
  BudgetedPlans(const OrderModel& model, const PlanOptions& options, const std::vector<OpId>& order,
                const PlanResult& unlimited, std::int64_t arena_bytes, const std::function<bool()>& should_stop);
  BudgetedPlans(const BudgetedPlans&) = delete;
  BudgetedPlans& operator=(const BudgetedPlans&) = delete;

  // The fastest plan within the budget, its figures and bounds in `result`. None: there the smallest budget that has
  // one. `limited`: options.budget_work holds.
  std::optional<budget::Fitted> within(std::int64_t budget_bytes, bool limited, PlanResult& result);

  // The allowance ended the last search.
  [[nodiscard]] bool spent_all() const { return limited_ && work_ > 0 && spent_ > work_; }

 private:
  budget::FitOptions fit_options(const PlanOptions& options, const std::function<bool()>& should_stop);

  std::int64_t work_ = 0, spent_ = 0;
  bool limited_ = true;
  budget::Recipes recipes_;
  std::vector<std::vector<OpId>> orders_;
  budget::Ladder ladder_;
};

}  // namespace stowage
