// The planner: Graph in, Plan out, with a proven bound on how much better any plan could be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stowage/graph.h"
#include "stowage/layout.h"
#include "stowage/plan.h"
#include "stowage/roam.h"

namespace stowage {

// stowage: exact and heuristic search with certificates. roam: the published system, as a rival (roam.h); needs HiGHS,
// uses no in-place reuse.
enum class Method : std::uint8_t { kStowage, kRoam };

struct PlanOptions {
  std::optional<std::int64_t> budget_bytes;  // residents + arena must not exceed this
  bool keep_order = false;                   // steps in program order; only addresses are decided
  bool takeover = true;                      // in-place reuse: results over inputs that die there, where allowed
  // Both for up to 10,000 ops; they grow with the ops to four times as much at 40,000
  std::int64_t order_node_budget = 1'400'000;
  std::int64_t layout_node_budget = 125'000;
  // For all budgets of one graph, about a nanosecond a unit; 0: no limit. Beyond it kUnknown
  std::int64_t budget_work = 0;
  double time_limit_seconds = 0;  // outer stop; 0: none
  Method method = Method::kStowage;
  RoamOptions roam;            // of Method::kRoam
  std::string solver_library;  // path of HiGHS's shared library; empty: looked for (docs/how-it-works.md)
  std::uint64_t seed = 0;
  std::int64_t least_leaving_bytes = 64 << 10;  // residents of less stay: their copies cost more than their place
  double link_gbps = 12;  // of each swap lane, in 10^9 bytes a second; 0: no link, recomputation alone
  // Called with a phase ("budget", "order", "layout", "verify") and the fraction done in [0, 1]; may be empty.
  std::function<void(std::string_view, double)> progress;
};

struct PhaseSeconds {
  double load = 0;  // of the graph; left to who loads it
  double budget = 0;
  double order = 0;
  double layout = 0;
  double verify = 0;
  double total = 0;
};

struct PlanResult {
  // kOptimal: peak_bytes <= lower_bound_bytes, and under a budget step_ns == step_bound_ns too. kInfeasible: the budget
  // is below smallest_bytes; proven below budget_bound_bytes, else the search found nothing smaller. kUnknown: the time
  // limit stopped the search.
  Outcome outcome = Outcome::kUnknown;
  std::optional<Plan> plan;             // present unless infeasible or unknown; has passed check()
  std::int64_t resident_bytes = 0;      // of residents that stay on the device
  std::int64_t program_peak_bytes = 0;  // in program order, without recomputation or swapping
  std::int64_t peak_bytes = 0;
  std::int64_t lower_bound_bytes = 0;   // on peak_bytes over all valid plans without recomputation and swapping
  double gap = 0;                       // gap(peak_bytes, lower_bound_bytes)
  std::int64_t smallest_bytes = 0;      // infeasible or unknown under a budget: the smallest budget that has a plan
  std::int64_t budget_bound_bytes = 0;  // no plan fits a budget below this
  std::int64_t recomputed_ops = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t swapped_bytes = 0;
  // Residents leave only where no plan without that was found within the budget (Buffer::leaves)
  std::int64_t away_bytes = 0;                // of residents that wait on the host
  std::int64_t fetched_bytes = 0;             // of them, copied in during the step
  std::int64_t step_ns = 0;                   // predicted
  std::int64_t program_step_ns = 0;           // sum of all cost_ns
  std::optional<std::int64_t> step_bound_ns;  // proven lower bound on step_ns under the budget
  // What the searches without a budget looked at: about a nanosecond each, the same on every machine
  std::int64_t work = 0;
  PhaseSeconds seconds;
};

// `graph` must satisfy validate(). Throws Error on a bug (its own plan failing check()), and for Method::kRoam when
// HiGHS is missing or keep_order is set.
PlanResult plan(const Graph& graph, const PlanOptions& options);

// The plan without a limit, then one within each of the budgets that are chosen from it; what they share is done once
// (of options.budget_bytes only this is looked at: that budget is met without the limit of options.budget_work).
std::vector<PlanResult> plan_each(const Graph& graph, const PlanOptions& options,
                                  const std::function<std::vector<std::int64_t>(const PlanResult& unlimited)>& budgets);

// The must-live bound and what strengthens it: no valid plan without recomputation and swapping has a smaller peak.
std::int64_t lower_bound_bytes(const Graph& graph);

// peak / bound - 1. 0 where a plan under a budget is below the bound, which is that of plans without recomputation and
// swapping.
double gap(std::int64_t peak_bytes, std::int64_t lower_bound_bytes);

// Peak of the graph run in program order, each buffer freed after its last use.
std::int64_t program_peak_bytes(const Graph& graph);

}  // namespace stowage
