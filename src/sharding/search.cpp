#include "sharding/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sharding/ledger.h"
#include "sharding/settle.h"

namespace stowage {

double counted(const ShardingBytes& b) {
  return static_cast<double>(b.parameters + b.gradients + b.optimizer_state + b.buffers + b.inputs + b.saved);
}

bool is_settled(const Found& found) { return found.complete || found.plan.time.outcome == Outcome::kInfeasible; }

Search::Search(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options)
    : options_(options), seconds_(options.time_limit_seconds), space_(make_space(program, mesh, options)) {}

void Search::begin(double seconds, Prices prices) {
  began_ = watch_.seconds();
  seconds_ = seconds;
  space_.set_prices(std::move(prices));
}

// Every home where it counts least is a bound. A plan that meets it proves it: units whose copies count must then
// copy nothing, which is looked for only where there are such units; if there is no such plan, the bytes are searched
// for.
void Search::find_fewest() {
  if (knows_fewest_) return;
  knows_fewest_ = true;
  redundancy_ = {Outcome::kOptimal, space_.least_bytes, space_.least_bytes, 0};
  const bool bound_to_others = std::any_of(space_.edges.begin(), space_.edges.end(),
                                           [](const SpaceEdge& e) { return e.pinned || e.charged > 0; });
  if (bound_to_others) {
    const auto solve = [&](double budget) {
      return solve_space(space_, options_, {.bytes_only = true, .byte_budget = budget, .seconds = left(), .peaks = {}},
                         solved_);
    };
    MilpAnswer bytes = solve(space_.least_bytes);
    if (bytes.choice.homes.empty()) bytes = solve(kInfinity);
    redundancy_.outcome = bytes.choice.homes.empty() ? Outcome::kUnknown : bytes.outcome;
    redundancy_.value = std::round(space_.least_bytes + bytes.objective);
    redundancy_.bound = space_.least_bytes + std::max(0.0, std::floor(bytes.bound + 0.5));
  }
  redundancy_.seconds = watch_.seconds();
}

Found Search::run(double budget, double seconds, const Neighbourhood* within) {
  MilpAnswer answer = solve_space(
      space_, options_,
      {.bytes_only = false, .byte_budget = budget, .seconds = seconds, .peaks = peaks_, .within = within}, solved_);
  if (answer.choice.homes.empty()) return nothing(answer.outcome, std::max(answer.bound, 0.0));
  settle(space_, answer.choice);
  Found found{make_ledger(space_, answer.choice), std::move(answer.choice), answer.outcome == Outcome::kOptimal};
  ShardingPlan& plan = found.plan;
  plan.redundancy = redundancy_;
  plan.time = {answer.outcome, plan.step_ns(), std::max(answer.bound, 0.0), watch_.seconds() - redundancy_.seconds};
  if (plan.overlap) plan.time.outcome = outcome_of(plan);  // it was the least price that was sought
  plan.variables = answer.columns;
  plan.choices = static_cast<std::int64_t>(space_.units.size() + space_.homes.size());
  return found;
}

Found Search::as_plan(Choice choice, double budget) const {
  const auto says = [](std::int32_t at) { return at >= 0; };
  Found none = nothing(Outcome::kUnknown);
  if (!std::all_of(choice.homes.begin(), choice.homes.end(), says)) return none;
  if (!std::all_of(choice.strategies.begin(), choice.strategies.end(), says)) return none;
  choice.keep_home.clear();
  choice.keep_unit.clear();
  Found found{make_ledger(space_, choice), std::move(choice)};
  ShardingPlan& plan = found.plan;
  if (counted(plan.bytes) > budget * (1 + 1e-12)) return none;
  if (options_.memory_limit_bytes && plan.bytes.limited_peak > *options_.memory_limit_bytes) return none;
  plan.redundancy = redundancy_;
  plan.time = {Outcome::kFeasible, plan.step_ns(), 0, watch_.seconds() - redundancy_.seconds};
  return found;
}

Found Search::better(Found a, Found b) const {
  if (b.plan.ops.empty() || (!a.plan.ops.empty() && a.plan.time.value <= b.plan.time.value)) return a;
  b.plan.time.bound = a.plan.time.bound;
  b.plan.time.outcome = outcome_of(b.plan);
  b.complete = a.complete;
  return b;
}

Outcome Search::outcome_of(const ShardingPlan& plan) const {
  const bool close = plan.time.value <= plan.time.bound * (1 + options_.relative_gap);
  return close ? Outcome::kOptimal : Outcome::kFeasible;
}

Found Search::nothing(Outcome outcome, double bound) const {
  Found none;
  none.plan.redundancy = redundancy_;
  none.plan.time.outcome = outcome;
  none.plan.time.bound = bound;
  return none;
}

bool Search::has_row(std::int32_t op) const {
  return std::any_of(peaks_.begin(), peaks_.end(), [&](const PeakRow& row) { return row.op == op; });
}

double Search::left() const { return seconds_ > 0 ? std::max(0.1, began_ + seconds_ - watch_.seconds()) : 0; }

bool Search::is_past(double part) const { return seconds_ > 0 && watch_.seconds() - began_ > part * seconds_; }

}  // namespace stowage
