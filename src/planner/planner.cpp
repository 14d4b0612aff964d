// The way of a plan, each stage one call:
//
//   Graph ──▶ analyse ──▶ order ──▶ lay out ──▶ fit the budget ──▶ assemble ──▶ check ──▶ PlanResult
//             │           │         │           │                  │            │
//             │           │         │           │                  │            plan/check.cpp, which knows none of the others
//             │           │         │           │                  layout/timeline.h
//             │           │         │           budgeted_plans.h, only where the arena so far is larger than a budget
//             │           │         lay_out.h
//             │           choose_orders.h
//             graph/analysed_graph.h, order/model.h
//
// Up to the layout all is done once for any number of budgets.
#include "stowage/planner.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "order/model.h"
#include "planner/budgeted_plans.h"
#include "planner/choose_orders.h"
#include "planner/effort.h"
#include "planner/lay_out.h"
#include "planner/residents.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/stopwatch.h"

namespace stowage {
namespace {

// What follows from the graph; both parts refer to what is before them.
struct Analysis {
  explicit Analysis(const Graph& of) : graph(of), model(graph) {}

  AnalysedGraph graph;
  OrderModel model;
};

// What is known before any search.
PlanResult known(const Analysis& analysis) {
  const AnalysedGraph& graph = analysis.graph;
  std::int64_t most = 0;
  for (const std::int64_t bytes : graph.run_bytes) most = std::max(most, bytes);
  PlanResult result;
  result.resident_bytes = graph.resident_bytes;
  result.program_peak_bytes = analysis.model.program_peak_bytes;
  // Even with recomputation and swapping: what one op needs at one tick, and what is returned
  result.budget_bound_bytes = graph.resident_bytes + std::max(most, graph.returned_bytes);
  result.program_step_ns = program_step_ns(graph.graph);
  result.step_ns = result.program_step_ns;
  return result;
}

void judge(const PlanOptions& options, std::optional<std::int64_t> budget_bytes, bool stopped, PlanResult& result) {
  result.gap = gap(result.peak_bytes, result.lower_bound_bytes);
  result.outcome = result.peak_bytes <= result.lower_bound_bytes ? Outcome::kOptimal : Outcome::kFeasible;
  if (!budget_bytes) return;
  if (result.smallest_bytes <= *budget_bytes) {
    if (!result.step_bound_ns) result.step_bound_ns = result.program_step_ns;
    if (result.step_ns != result.step_bound_ns) result.outcome = Outcome::kFeasible;
    return;
  }
  const bool gave_up = stopped || options.method == Method::kRoam;
  result.outcome = gave_up && *budget_bytes >= result.budget_bound_bytes ? Outcome::kUnknown : Outcome::kInfeasible;
  result.plan.reset();
}

// One graph, planned once without a limit and then within any number of limits.
class Planning {
 public:
  Planning(const Graph& graph, const PlanOptions& options) : options_(options) {
    if (options.time_limit_seconds > 0)
      should_stop_ = [this] { return watch_.seconds() > options_.time_limit_seconds; };
    PhaseSeconds seconds;
    phase("order", seconds.order, [&] {
      analysis_.emplace(graph);
      orders_ = choose_orders(analysis_->model, options, should_stop_);
    });
    unlimited_ = known(*analysis_);
    unlimited_.lower_bound_bytes = orders_.found.bound_bytes;
    unlimited_.work = orders_.found.work;
    phase("layout", seconds.layout,
          [&] { best_ = lay_out(analysis_->model, orders_, options, should_stop_, unlimited_.work); });
    unlimited_.peak_bytes = peak_bytes(*best_.ordered, best_.used);
    unlimited_.smallest_bytes = unlimited_.resident_bytes + best_.layout.height_bytes;
    unlimited_.seconds = seconds;
  }
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  PlanResult within(std::optional<std::int64_t> budget_bytes) {
    PlanResult result = unlimited_;
    // ROAM neither recomputes nor swaps
    const bool over = budget_bytes && result.smallest_bytes > *budget_bytes && options_.method != Method::kRoam;
    std::optional<budget::Fitted> fitted;
    if (over) phase("budget", result.seconds.budget, [&] { fitted = fit_budget(*budget_bytes, result); });

    result.plan = fitted ? assemble(graph(), std::move(fitted->schedule.timeline), fitted->layout)
                         : assemble(graph(), best_.timeline, best_.layout);
    if (best_.stats) result.plan->meta = to_json(*best_.stats);

    phase("verify", result.seconds.verify, [&] { verify(over, result); });

    const bool spent_all = over && budgeted_->spent_all();
    judge(options_, budget_bytes, (should_stop_ && should_stop_()) || spent_all, result);
    if (spent_all && !result.plan) result.smallest_bytes = 0;  // not known
    result.seconds.total = watch_.seconds();
    return result;
  }

  // As within(); where no plan can fit, that is all that it says, without the search for the smallest that does.
  PlanResult within_or_bound(std::int64_t budget_bytes) {
    if (budget_bytes >= unlimited_.budget_bound_bytes) return within(budget_bytes);
    PlanResult result = unlimited_;
    result.outcome = Outcome::kInfeasible;
    return result;
  }

 private:
  [[nodiscard]] const Graph& graph() const { return analysis_->graph.graph; }

  std::optional<budget::Fitted> fit_budget(std::int64_t budget_bytes, PlanResult& result) {
    if (!budgeted_)
      budgeted_.emplace(analysis_->model, options_, orders_.found.orders[0], unlimited_, best_.layout.height_bytes,
                        should_stop_);
    return budgeted_->within(budget_bytes, budget_bytes != options_.budget_bytes, result);
  }

  void verify(bool over, PlanResult& result) const {
    const CheckReport checked = check(graph(), *result.plan);
    if (!checked.valid) throw Error("the planner made a plan that is not valid: " + checked.message);
    if (!over && checked.peak_bytes != result.peak_bytes)
      throw Error("the planner and the checker disagree on the peak");
    result.peak_bytes = checked.peak_bytes;
  }

  template <class Stage>
  void phase(std::string_view name, double& seconds, Stage stage) const {
    if (options_.progress) options_.progress(name, 0);
    const Stopwatch watch;
    stage();
    seconds = watch.seconds();
    if (options_.progress) options_.progress(name, 1);
  }

  const PlanOptions& options_;
  Stopwatch watch_;
  std::function<bool()> should_stop_;
  std::optional<Analysis> analysis_;
  ChosenOrders orders_;
  LaidOut best_;
  PlanResult unlimited_;  // less its plan
  std::optional<BudgetedPlans> budgeted_;
};

}  // namespace

double gap(std::int64_t peak_bytes, std::int64_t lower_bound_bytes) {
  if (peak_bytes <= lower_bound_bytes || lower_bound_bytes == 0) return 0;
  return static_cast<double>(peak_bytes) / static_cast<double>(lower_bound_bytes) - 1;
}

// The same search as plan() with default options, so that both report one bound.
std::int64_t lower_bound_bytes(const Graph& graph) {
  const Analysis analysis(graph);
  const std::int64_t work = Effort(graph.ops.size(), PlanOptions{}).order_work;
  return find_order(analysis.model, {work, {}, true}).bound_bytes;
}

std::int64_t program_peak_bytes(const Graph& graph) { return peak_bytes(graph, program_order(graph)); }

PlanResult plan(const Graph& graph, const PlanOptions& options) {
  const bool may_leave =
      options.budget_bytes && options.link_gbps > 0 && options.method == Method::kStowage && has_leaving(graph);
  Planning planning(graph, options);
  if (!may_leave) return planning.within(options.budget_bytes);
  const PlanResult stay = planning.within_or_bound(*options.budget_bytes);
  if (stay.plan) return stay;
  PlanResult leave = plan_with_leaving(graph, options, stay);
  // The smallest budget that works may be one that holds all residents
  if (!leave.plan && leave.smallest_bytes > stay.budget_bound_bytes && *options.budget_bytes < stay.budget_bound_bytes)
    if (const std::int64_t known = planning.within(stay.budget_bound_bytes).smallest_bytes; known > 0)
      leave.smallest_bytes = std::min(leave.smallest_bytes, known);
  return leave;
}

std::vector<PlanResult> plan_each(const Graph& graph, const PlanOptions& options,
                                  const std::function<std::vector<std::int64_t>(const PlanResult&)>& budgets) {
  Planning planning(graph, options);
  std::vector<PlanResult> results{planning.within(std::nullopt)};
  for (const std::int64_t budget : budgets(results[0])) results.push_back(planning.within(budget));
  return results;
}

}  // namespace stowage
