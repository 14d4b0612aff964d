// The road of a sharding: clusters and prices, then two stages.
//
//   space ──▶ stage 1: fewest counted bytes ──▶ stage 2: least time, bytes <= (1 + eps) * fewest ──▶ strategies ──▶ ledger
//             every home by itself is a bound;
//             that stage 2 meets it proves it
//
// Redistribution lets any op run whatever the placements around it, so homes rarely bind each other: the sum of each
// home's least is nearly always reached, and then stage 1 needs no search.
//
// Three axes and more make stage 2 too large to end in a minute. It is then also searched in small:
//
//   (4,4,4) ──▶ (16,4) and (4,16), each planned by itself ──┐                                      ┌── one axis free ◀─┐
//           └─▶ the plan of the fewest bytes ───────────────┴──▶ between these (neighbourhood.h) ──┴─▶ two axes free ──┘
//
// Each turn keeps the best plan on the axes that are not free, and is about as large as a plan on so many axes.
// A stage 2 on fewer axes that is cut short is followed by one among the plans of the fewest bytes, which ends much
// sooner. The faster plan is shown.
//
// A limit on the peak is met by rows for the ops where plans passed it (peak_row.h), one more after each search: few
// ops are peaks, and most limits need a handful. Where a plan passes the limit at an op that has its row (a view kept
// its base alive), the bytes that count (state, saved) get a smaller budget; such a plan is not proven the fastest, and
// the bound stays that of the rows alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/concat.h"
#include "sharding/ledger.h"
#include "sharding/merged_axes.h"
#include "sharding/neighbourhood.h"
#include "sharding/settle.h"
#include "sharding/sharding_milp.h"
#include "stowage/error.h"
#include "stowage/stopwatch.h"

namespace stowage {
namespace {

constexpr int kLimitRounds = 24;
constexpr std::size_t kManyAxes = 3;
// Of the time that is left:
constexpr double kShareForAll = 0.7;    // for the search among all plans within the budget
constexpr double kShareOfGuides = 0.5;  // for plans of merged meshes and that of the fewest bytes, together
constexpr double kShareOfRounds = 0.4;  // for each search between them
// After this part of the whole time no other small search begins
constexpr double kLate = 0.9;
constexpr double kLeastGain = 1e-4;  // less is no reason for another turn

struct Found {
  ShardingPlan plan;
  Choice choice;  // empty: there is no plan
};

class Planner {
 public:
  Planner(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options)
      : options_(options), space_(make_space(program, mesh, options)) {}

  Found run() {
    find_fewest();
    const double budget =
        options_.goal == ShardingGoal::kLeastTime ? kInfinity : (1 + options_.eps) * redundancy_.value;
    if (options_.memory_limit_bytes && least_state() > *options_.memory_limit_bytes)
      return nothing(Outcome::kInfeasible);
    if (space_.mesh.axes.size() < kManyAxes || (!is_wider(budget) && !options_.memory_limit_bytes))
      return limited(budget, [&](double bytes) { return search_twice(bytes); });
    // Under a limit the large search would leave no seconds for the small ones; without one it is the easiest of all
    const bool timed = options_.time_limit_seconds > 0;
    Found small = nothing(Outcome::kUnknown);
    if (timed && has_limit(budget)) small = search_in_small(budget);
    const double share = timed && !has_limit(budget) ? kShareForAll : 1;
    Found all = limited(budget, [&](double bytes) { return search(bytes, share * left()); });
    if (small.plan.ops.empty() && !is_settled(all)) small = search_in_small(budget);
    return better(std::move(all), std::move(small));
  }

  [[nodiscard]] const Space& space() const { return space_; }

 private:
  // The fastest of what `among` searches, within the limit on the peak.
  Found limited(double budget, const std::function<Found(double budget)>& among) {
    Found found = among(budget);
    if (!options_.memory_limit_bytes || found.plan.ops.empty()) return found;
    const std::int64_t limit = *options_.memory_limit_bytes;
    double bound = found.plan.time.bound;
    bool proven = true;
    for (int round = 0; round < kLimitRounds && found.plan.bytes.peak > limit; ++round) {
      const ShardingBytes& bytes = found.plan.bytes;
      if (has_row(bytes.peak_op)) {
        const double smaller = std::min(budget, counted(bytes)) - static_cast<double>(bytes.peak - limit);
        budget = std::max(redundancy_.value, smaller);
        if (budget >= counted(bytes)) break;  // nothing that counts is left to give
        proven = false;
      } else {
        peaks_.push_back(make_peak_row(space_, bytes.peak_op, limit));
      }
      found = among(budget);
      if (proven) bound = found.plan.time.bound;
      if (found.plan.ops.empty()) return nothing(proven ? found.plan.time.outcome : Outcome::kUnknown, bound);
    }
    if (found.plan.bytes.peak > limit) return nothing(Outcome::kUnknown, bound);
    if (!proven && found.plan.time.outcome == Outcome::kOptimal) found.plan.time.outcome = Outcome::kFeasible;
    found.plan.time.bound = bound;
    return found;
  }

  Found search_twice(double budget) {
    Found found = search(budget, is_wider(budget) ? kShareForAll * left() : left());
    if (!is_wider(budget) || is_settled(found)) return found;
    return better(std::move(found), search(redundancy_.value, left()));
  }

  // Plans of meshes with merged axes, that of the fewest bytes, and what lies between them.
  Found search_in_small(double budget) {
    const Mesh& mesh = space_.mesh;
    const std::size_t merges = mesh.axes.size() - 1;
    const double seconds = kShareOfGuides * left() / static_cast<double>(merges + 1);
    std::vector<Choice> known;
    for (std::size_t first = 0; first < merges; ++first) {
      ShardingOptions options = options_;
      options.fixed = merge_axes(options_.fixed, first);
      options.time_limit_seconds = seconds;
      Planner guide(*space_.program, merge_axes(mesh, first), options);
      const Found found = guide.run();
      if (!found.choice.homes.empty()) known.push_back(split_axes(space_, guide.space(), found.choice, first));
    }
    Found least = search(redundancy_.value, seconds);
    if (!least.choice.homes.empty()) known.push_back(least.choice);
    Found best = nothing(Outcome::kUnknown);
    for (const Choice& choice : known) best = better(std::move(best), as_plan(choice, budget));
    best = better(std::move(best), search_near(known, 0, budget));
    if (known.empty()) return best;
    for (std::size_t count = 1; count < mesh.axes.size(); ++count)
      best = loosen(std::move(best), known.back(), count, budget);
    return best;
  }

  // Any `count` axes in turn are free, and on the others all stays, until no turn helps.
  Found loosen(Found best, const Choice& otherwise, std::size_t count, double budget) {
    std::vector<unsigned> turns;
    for (unsigned loose = 0; loose < 1U << space_.mesh.axes.size(); ++loose)
      if (static_cast<std::size_t>(std::popcount(loose)) == count) turns.push_back(loose);
    for (std::size_t i = 0, in_vain = 0; in_vain < turns.size() && !is_late(); ++i) {
      const double before = best.plan.ops.empty() ? kInfinity : best.plan.time.value;
      const Choice from = best.plan.ops.empty() ? otherwise : best.choice;
      best = better(std::move(best), search_near({from}, turns[i % turns.size()], budget));
      const bool helped = !best.plan.ops.empty() && best.plan.time.value < before * (1 - kLeastGain);
      in_vain = helped ? 1 : in_vain + 1;
    }
    return best;
  }

  Found search_near(const std::vector<Choice>& known, unsigned loose, double budget) {
    const Neighbourhood near = between(space_, known, loose);
    Found found = limited(budget, [&](double bytes) { return search(bytes, kShareOfRounds * left(), &near); });
    found.plan.time.bound = 0;  // of some choices, not of all
    return found;
  }

  // A choice that is known, if it keeps the limits.
  Found as_plan(Choice choice, double budget) const {
    const auto says = [](std::int32_t at) { return at >= 0; };
    Found none = nothing(Outcome::kUnknown);
    if (!std::all_of(choice.homes.begin(), choice.homes.end(), says)) return none;
    if (!std::all_of(choice.strategies.begin(), choice.strategies.end(), says)) return none;
    choice.keep_home.clear();
    choice.keep_unit.clear();
    Found found{make_ledger(space_, choice), std::move(choice)};
    ShardingPlan& plan = found.plan;
    if (counted(plan.bytes) > budget * (1 + 1e-12)) return none;
    if (options_.memory_limit_bytes && plan.bytes.peak > *options_.memory_limit_bytes) return none;
    plan.redundancy = redundancy_;
    plan.time = {Outcome::kFeasible, plan.compute_ns + plan.communication_ns, 0,
                 watch_.seconds() - redundancy_.seconds};
    return found;
  }

  // Where neither has a plan, the first says why. Bounds hold for all choices, those of `b` not.
  [[nodiscard]] Found better(Found a, Found b) const {
    if (b.plan.ops.empty() || (!a.plan.ops.empty() && a.plan.time.value <= b.plan.time.value)) return a;
    b.plan.time.bound = a.plan.time.bound;
    const bool close = b.plan.time.value <= b.plan.time.bound * (1 + options_.relative_gap);
    b.plan.time.outcome = close ? Outcome::kOptimal : Outcome::kFeasible;
    return b;
  }

  static bool is_settled(const Found& found) {
    return found.plan.time.outcome == Outcome::kOptimal || found.plan.time.outcome == Outcome::kInfeasible;
  }
  [[nodiscard]] bool is_wider(double budget) const { return budget > redundancy_.value; }
  [[nodiscard]] bool has_limit(double budget) const { return !std::isinf(budget) || options_.memory_limit_bytes; }
  [[nodiscard]] bool is_late() const {
    return options_.time_limit_seconds > 0 && watch_.seconds() > kLate * options_.time_limit_seconds;
  }

  Found search(double budget, double seconds, const Neighbourhood* within = nullptr) {
    MilpAnswer answer = solve_space(
        space_, options_,
        {.bytes_only = false, .byte_budget = budget, .seconds = seconds, .peaks = peaks_, .within = within});
    if (answer.choice.homes.empty()) return nothing(answer.outcome, std::max(answer.bound, 0.0));
    settle(space_, answer.choice);
    Found found{make_ledger(space_, answer.choice), std::move(answer.choice)};
    ShardingPlan& plan = found.plan;
    plan.redundancy = redundancy_;
    plan.time = {answer.outcome, plan.compute_ns + plan.communication_ns, std::max(answer.bound, 0.0),
                 watch_.seconds() - redundancy_.seconds};
    plan.variables = answer.columns;
    plan.choices = static_cast<std::int64_t>(space_.units.size() + space_.homes.size());
    return found;
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

  [[nodiscard]] Found nothing(Outcome outcome, double bound = 0) const {
    Found none;
    none.plan.redundancy = redundancy_;
    none.plan.time.outcome = outcome;
    none.plan.time.bound = bound;
    return none;
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
  return Planner(program, mesh, options).run().plan;
}

}  // namespace stowage
