// The road of a sharding: clusters and prices, then two stages.
//
//   space ──▶ stage 1: fewest counted bytes ──▶ stage 2: least time, bytes <= (1 + eps) * fewest ──▶ strategies ──▶ ledger
//             every home by itself is a bound;
//             that stage 2 meets it proves it
//
// Redistribution lets any op run whatever the placements around it, so homes rarely bind each other: the sum of each
// home's least is nearly always reached, and then stage 1 needs no search.
//
// A stage 2 that is cut short is followed by one among the plans of the fewest bytes, which ends much sooner: the
// faster plan is shown.
//
// A limit on the peak is met by rows for the ops where plans passed it (peak_row.h), one more after each search: few
// ops are peaks, and most limits need a handful. Where a plan passes the limit at an op that has its row (a view kept
// its base alive), the bytes that count (state, saved) get a smaller budget; such a plan is not proven the fastest, and
// the bound stays that of the rows alone.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/concat.h"
#include "sharding/ledger.h"
#include "sharding/settle.h"
#include "sharding/sharding_milp.h"
#include "stowage/error.h"
#include "stowage/stopwatch.h"

namespace stowage {
namespace {

constexpr int kLimitRounds = 24;
constexpr double kShareForAll = 0.7;  // of the time: of the search among all plans within the budget

class Planner {
 public:
  Planner(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options)
      : options_(options), space_(make_space(program, mesh, options)) {}

  ShardingPlan run() {
    find_fewest();
    double budget = options_.goal == ShardingGoal::kLeastTime ? kInfinity : (1 + options_.eps) * redundancy_.value;
    ShardingPlan plan = search(budget);
    if (!options_.memory_limit_bytes || plan.ops.empty()) return plan;
    const std::int64_t limit = *options_.memory_limit_bytes;
    if (least_state() > limit) return nothing(Outcome::kInfeasible);
    double bound = plan.time.bound;
    bool proven = true;
    for (int round = 0; round < kLimitRounds && plan.bytes.peak > limit; ++round) {
      if (has_row(plan.bytes.peak_op)) {
        const double smaller = std::min(budget, counted(plan.bytes)) - static_cast<double>(plan.bytes.peak - limit);
        budget = std::max(redundancy_.value, smaller);
        if (budget >= counted(plan.bytes)) break;  // nothing that counts is left to give
        proven = false;
      } else {
        peaks_.push_back(make_peak_row(space_, plan.bytes.peak_op, limit));
      }
      plan = search(budget);
      if (plan.ops.empty()) return nothing(proven ? plan.time.outcome : Outcome::kUnknown);
      if (proven) bound = plan.time.bound;
    }
    if (plan.bytes.peak > limit) return nothing(Outcome::kUnknown);
    if (!proven && plan.time.outcome == Outcome::kOptimal) plan.time.outcome = Outcome::kFeasible;
    plan.time.bound = bound;
    return plan;
  }

 private:
  ShardingPlan search(double budget) {
    const bool wider = budget > redundancy_.value;
    ShardingPlan plan = search_for(budget, wider ? kShareForAll * left() : left());
    if (!wider || plan.time.outcome == Outcome::kOptimal || plan.time.outcome == Outcome::kInfeasible) return plan;
    ShardingPlan least = search_for(redundancy_.value, left());
    if (least.ops.empty() || (!plan.ops.empty() && plan.time.value <= least.time.value)) return plan;
    least.time.outcome = Outcome::kFeasible;
    least.time.bound = plan.time.bound;
    return least;
  }

  ShardingPlan search_for(double budget, double seconds) {
    MilpAnswer answer = solve_space(space_, options_,
                                    {.bytes_only = false, .byte_budget = budget, .seconds = seconds, .peaks = peaks_});
    if (answer.choice.homes.empty()) {
      ShardingPlan none = nothing(answer.outcome);
      none.time.bound = std::max(answer.bound, 0.0);
      return none;
    }
    settle(space_, answer.choice);
    ShardingPlan plan = make_ledger(space_, answer.choice);
    plan.redundancy = redundancy_;
    plan.time = {answer.outcome, plan.compute_ns + plan.communication_ns, std::max(answer.bound, 0.0),
                 watch_.seconds() - redundancy_.seconds};
    plan.variables = answer.columns;
    plan.choices = static_cast<std::int64_t>(space_.units.size() + space_.homes.size());
    return plan;
  }

  [[nodiscard]] bool has_row(std::int32_t op) const {
    return std::any_of(peaks_.begin(), peaks_.end(), [&](const PeakRow& row) { return row.op == op; });
  }

  static double counted(const ShardingBytes& b) {
    return static_cast<double>(b.parameters + b.gradients + b.optimizer_state + b.buffers + b.inputs + b.saved);
  }

  // What exists before the step, each tensor where it is smallest: no plan has a lower peak.
  [[nodiscard]] std::int64_t least_state() const {
    std::int64_t sum = 0;
    for (std::size_t t = 0; t < space_.program->tensors.size(); ++t) {
      if (space_.storage.maker[t] >= 0 || space_.storage.counted[t] != Counted::kFull) continue;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      const ProgramTensor& tensor = space_.program->tensors[t];
      for (const Code code : all_codes(tensor, space_.mesh.axes.size()))
        least = std::min(least, largest_bytes(tensor, code, space_.mesh));
      sum += least;
    }
    return sum;
  }

  // Every home where it counts least is a bound. A plan that meets it proves it: units whose copies count must then
  // copy nothing, which is looked for only where there are such units; if there is no such plan, the bytes are searched
  // for.
  void find_fewest() {
    redundancy_ = {Outcome::kOptimal, space_.least_bytes, space_.least_bytes, 0};
    const bool bound_to_others = std::any_of(space_.edges.begin(), space_.edges.end(),
                                             [](const SpaceEdge& e) { return e.pinned || e.charged > 0; });
    if (bound_to_others) {
      MilpAnswer bytes = solve_space(
          space_, options_, {.bytes_only = true, .byte_budget = space_.least_bytes, .seconds = left(), .peaks = {}});
      if (bytes.choice.homes.empty())
        bytes = solve_space(space_, options_,
                            {.bytes_only = true, .byte_budget = kInfinity, .seconds = left(), .peaks = {}});
      redundancy_.outcome = bytes.choice.homes.empty() ? Outcome::kUnknown : bytes.outcome;
      redundancy_.value = std::round(space_.least_bytes + bytes.objective);
      redundancy_.bound = space_.least_bytes + std::max(0.0, std::floor(bytes.bound + 0.5));
    }
    redundancy_.seconds = watch_.seconds();
  }

  [[nodiscard]] double left() const {
    return options_.time_limit_seconds > 0 ? std::max(0.1, options_.time_limit_seconds - watch_.seconds()) : 0;
  }

  [[nodiscard]] ShardingPlan nothing(Outcome outcome) const {
    ShardingPlan plan;
    plan.redundancy = redundancy_;
    plan.time.outcome = outcome;
    return plan;
  }

  const ShardingOptions& options_;
  Stopwatch watch_;
  StageResult redundancy_;
  Space space_;
  std::vector<PeakRow> peaks_;  // of the ops where a plan passed the limit
};

// Beyond these the times of one plan differ by so much that no solver can compare them in doubles.
constexpr double kLeastRate = 1e-6, kMostRate = 1e9, kMostNs = 1e12;

void require_comparable(const Mesh& mesh) {
  const auto rate = [](const std::string& what, double value) {
    if (!(value >= kLeastRate && value <= kMostRate))
      throw Error(concat("mesh: ", what, " must lie between 1e-6 and 1e9"));
  };
  const auto time = [](const std::string& what, double value) {
    if (!(value >= 0 && value <= kMostNs)) throw Error(concat("mesh: ", what, " must lie between 0 and 1e12"));
  };
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    rate(concat("axis ", i, ": gbps"), mesh.axes[i].gbps);
    time(concat("axis ", i, ": latency_ns"), mesh.axes[i].latency_ns);
  }
  rate("tflops", mesh.tflops);
  rate("memory_gbps", mesh.memory_gbps);
  time("kernel_ns", mesh.kernel_ns);
}

}  // namespace

ShardingPlan plan_sharding(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options) {
  if (program.ops.empty()) throw Error("a program to shard has no ops");
  require_comparable(mesh);
  return Planner(program, mesh, options).run();
}

}  // namespace stowage
