// solve() by HiGHS (Huangfu and Hall, "Parallelizing the dual revised simplex method", Math. Prog. Comp. 10, 2018).
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/concat.h"
#include "solver/highs_library.h"
#include "solver/milp.h"

namespace stowage {
namespace {

constexpr HighsInt kRowwise = 2, kMinimise = 1;
constexpr HighsInt kError = -1;
constexpr int kMipInterrupt = 6;  // the callback in which a search may be stopped
enum ModelStatus : HighsInt { kSolved = 7, kNoSolution = 8, kUnboundedOrNone = 9, kUnbounded = 10 };
constexpr HighsInt kFeasiblePoint = 2;

void check_shape(const MilpProblem& problem, const MilpOptions& options) {
  const std::size_t columns = problem.cost.size();
  if (problem.lower.size() != columns || problem.upper.size() != columns || problem.integer.size() != columns)
    throw Error("MILP: column arrays differ in length");
  for (const int column : problem.entry_column)
    if (column < 0 || column >= problem.columns())
      throw Error(concat("MILP: an entry names column ", column, ", which does not exist"));
  if (!options.start.empty() && options.start.size() != columns)
    throw Error("MILP: the start has not one value per column");
}

// Doubles do not compare costs that differ by so much, and HiGHS's simplex may turn in circles there without end, within
// one LP, where no limit but time is looked at.
constexpr double kWidestRange = 1e14;
constexpr double kSecondsBeyond = 0.25;

// HiGHS's tolerances are absolute, 1e-7 for costs, and beside larger ones a double's own rounding comes near that: its simplex
// then turns in circles. So they are made smaller by a power of two, which changes no digit.
constexpr double kLargestCost = 1e6;

class Search {
 public:
  Search(const MilpProblem& problem, const MilpOptions& options)
      : problem_(problem),
        options_(options),
        api_(load_highs(options.library)),
        highs_(api_.create(), api_.destroy),
        scale_(scale_of_costs()) {}

  MilpResult run() {
    set_options();
    pass();
    if (!options_.start.empty()) api_.setSolution(highs_.get(), options_.start.data(), nullptr, nullptr, nullptr);
    if (options_.iteration_limit > 0 || options_.should_stop) {
      api_.setCallback(highs_.get(), &Search::on_callback, this);
      api_.startCallback(highs_.get(), kMipInterrupt);
    }
    if (api_.run(highs_.get()) == kError) {
      // Somebody else in this process has set up HiGHS's workers for another number of threads.
      api_.resetGlobalScheduler(1);
      if (api_.run(highs_.get()) == kError)
        throw Error(concat("HiGHS failed: model status ", api_.getModelStatus(highs_.get())));
    }
    return result();
  }

 private:
  void set_options() const {
    void* h = highs_.get();
    api_.setBoolOptionValue(h, "output_flag", 0);
    api_.setStringOptionValue(h, "parallel", "off");
    api_.setIntOptionValue(h, "threads", 1);
    api_.setIntOptionValue(h, "random_seed", static_cast<HighsInt>(options_.seed % 2147483647U));
    api_.setIntOptionValue(h, "mip_max_nodes",
                           static_cast<HighsInt>(std::min<std::int64_t>(options_.node_limit, 2147483647)));
    api_.setDoubleOptionValue(h, "mip_rel_gap", options_.relative_gap);
    api_.setDoubleOptionValue(h, "mip_abs_gap", options_.absolute_gap * scale_);
    double seconds = options_.time_limit_seconds > 0 ? options_.time_limit_seconds : kInfinity;
    if (range_of_costs() > kWidestRange) seconds = std::min(seconds, kSecondsBeyond);
    if (seconds < kInfinity) api_.setDoubleOptionValue(h, "time_limit", seconds);
  }

  // A power of two, at most 1.
  [[nodiscard]] double scale_of_costs() const {
    double most = 0;
    for (const double cost : problem_.cost) most = std::max(most, std::abs(cost));
    return most > kLargestCost && std::isfinite(most) ? std::exp2(std::floor(std::log2(kLargestCost / most))) : 1;
  }

  // The largest cost beside the smallest.
  [[nodiscard]] double range_of_costs() const {
    double least = kInfinity, most = 0;
    for (const double cost : problem_.cost) {
      if (cost == 0) continue;
      least = std::min(least, std::abs(cost));
      most = std::max(most, std::abs(cost));
    }
    return most / least;
  }

  void pass() const {
    const std::vector<HighsInt> integrality(problem_.integer.begin(), problem_.integer.end());
    std::vector<double> costs = problem_.cost;
    for (double& cost : costs) cost *= scale_;
    const HighsInt status =
        api_.passMip(highs_.get(), problem_.columns(), problem_.rows(), static_cast<HighsInt>(problem_.entries()),
                     kRowwise, kMinimise, 0.0, costs.data(), problem_.lower.data(), problem_.upper.data(),
                     problem_.row_lower.data(), problem_.row_upper.data(), problem_.row_start.data(),
                     problem_.entry_column.data(), problem_.entry_value.data(), integrality.data());
    if (status == kError)
      throw Error("MILP: HiGHS refuses the problem (a bound, a cost or a coefficient is not a number)");
  }

  static void on_callback(int kind, const char*, const void* out, void* in, void* user) {
    const auto* self = static_cast<const Search*>(user);
    if (kind != kMipInterrupt || in == nullptr) return;
    const auto* iterations =
        static_cast<const std::int64_t*>(self->api_.getCallbackDataOutItem(out, "mip_total_lp_iterations"));
    const bool spent =
        self->options_.iteration_limit > 0 && iterations != nullptr && *iterations >= self->options_.iteration_limit;
    const bool stop = self->options_.should_stop && self->options_.should_stop();
    if (spent || stop) *static_cast<HighsInt*>(in) = 1;  // user_interrupt is the first field
  }

  MilpResult result() const {
    MilpResult r;
    const HighsInt status = api_.getModelStatus(highs_.get());
    if (status == kUnbounded || status == kUnboundedOrNone) throw Error("MILP: the problem is unbounded");
    api_.getInt64InfoValue(highs_.get(), "mip_node_count", &r.nodes);
    r.nodes = std::max<std::int64_t>(r.nodes, 0);  // -1 without integers
    HighsInt iterations = 0, point = 0;
    api_.getIntInfoValue(highs_.get(), "simplex_iteration_count", &iterations);
    r.iterations = iterations;
    if (status == kNoSolution) {
      r.outcome = Outcome::kInfeasible;
      return r;
    }
    api_.getIntInfoValue(highs_.get(), "primal_solution_status", &point);
    if (point == kFeasiblePoint) {
      r.outcome = status == kSolved ? Outcome::kOptimal : Outcome::kFeasible;
      take_solution(r);
    }
    set_bound(r);
    return r;
  }

  void take_solution(MilpResult& r) const {
    r.values.resize(problem_.cost.size());
    std::vector<double> column_duals(r.values.size()), rows(problem_.row_lower.size()), row_duals(rows.size());
    api_.getSolution(highs_.get(), r.values.data(), column_duals.data(), rows.data(), row_duals.data());
    for (std::size_t j = 0; j < r.values.size(); ++j)
      if (problem_.integer[j]) r.values[j] = std::round(r.values[j]);
    api_.getDoubleInfoValue(highs_.get(), "objective_function_value", &r.objective);
    r.objective /= scale_;
  }

  void set_bound(MilpResult& r) const {
    const bool has_integers = std::find(problem_.integer.begin(), problem_.integer.end(), 1) != problem_.integer.end();
    if (has_integers) {
      api_.getDoubleInfoValue(highs_.get(), "mip_dual_bound", &r.bound);
      r.bound /= scale_;
    } else if (r.outcome == Outcome::kOptimal) {
      r.bound = r.objective;
    }
  }

  const MilpProblem& problem_;
  const MilpOptions& options_;
  HighsLibrary api_;
  std::unique_ptr<void, void (*)(void*)> highs_;
  double scale_;
};

}  // namespace

MilpResult solve(const MilpProblem& problem, const MilpOptions& options) {
  check_shape(problem, options);
  return Search(problem, options).run();
}

}  // namespace stowage
