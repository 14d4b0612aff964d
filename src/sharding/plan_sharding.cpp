// The road of a sharding: clusters and prices, then two stages.
//
//   space ──▶ stage 1: fewest counted bytes ──▶ stage 2: least time, bytes <= (1 + eps) * fewest ──▶ strategies ──▶ ledger
//             every home by itself is a bound;
//             that stage 2 meets it proves it
//
// Redistribution lets any op run whatever the placements around it, so homes rarely bind each other: the sum of each home's least is
// nearly always reached, and then stage 1 needs no search.
#include <chrono>
#include <cmath>

#include "sharding/ledger.h"
#include "sharding/sharding_milp.h"
#include "stowage/error.h"

namespace stowage {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Planner {
 public:
  Planner(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options)
      : options_(options), started_(now()), space_(make_space(program, mesh, options)) {}

  ShardingPlan run() {
    double fewest = space_.least_bytes;
    Outcome proof = Outcome::kOptimal;
    double proven = fewest;
    MilpAnswer answer;
    if (options_.goal == ShardingGoal::kLeastTime) {
      answer = search(kInfinity);
    } else {
      answer = search((1 + options_.eps) * fewest);
      if (answer.outcome == Outcome::kInfeasible) {
        const MilpAnswer bytes = solve_space(space_, options_, {.bytes_only = true, .byte_budget = kInfinity, .seconds = left()});
        if (bytes.choice.homes.empty()) return nothing(bytes.outcome);
        proof = bytes.outcome;
        fewest += std::ceil(bytes.objective);
        proven += std::max(0.0, bytes.bound);
        answer = search((1 + options_.eps) * fewest);
      }
    }
    if (answer.choice.homes.empty()) return nothing(answer.outcome);
    settle_strategies(space_, answer.choice);
    ShardingPlan plan = make_ledger(space_, answer.choice);
    const double all = static_cast<double>(counted(plan.bytes));
    plan.redundancy = {options_.goal == ShardingGoal::kLeastTime ? Outcome::kFeasible : proof, all, proven, stage_one_};
    plan.time = {answer.outcome, plan.compute_ns + plan.communication_ns, answer.bound, now() - started_ - stage_one_};
    plan.variables = answer.columns;
    plan.choices = static_cast<std::int64_t>(space_.units.size() + space_.homes.size());
    return plan;
  }

 private:
  static std::int64_t counted(const ShardingBytes& b) {
    return b.parameters + b.gradients + b.optimizer_state + b.buffers + b.inputs + b.saved;
  }

  [[nodiscard]] double left() const {
    return options_.time_limit_seconds > 0 ? std::max(0.1, options_.time_limit_seconds - (now() - started_)) : 0;
  }

  MilpAnswer search(double byte_budget) {
    stage_one_ = now() - started_;
    return solve_space(space_, options_, {.bytes_only = false, .byte_budget = byte_budget, .seconds = left()});
  }

  [[nodiscard]] ShardingPlan nothing(Outcome outcome) const {
    ShardingPlan plan;
    plan.redundancy.outcome = plan.time.outcome = outcome;
    return plan;
  }

  const ShardingOptions& options_;
  double started_, stage_one_ = 0;
  Space space_;
};

}  // namespace

ShardingPlan plan_sharding(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options) {
  if (program.ops.empty()) throw Error("a program to shard has no ops");
  return Planner(program, mesh, options).run();
}

}  // namespace stowage
