#include "roam/layout_ilp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "solver/milp.h"

namespace stowage::roam {
namespace {

class Program {
 public:
  Program(const Floored& problem, const Offsets& start, std::int64_t bound) : problem_(problem), start_(start) {
    std::int64_t gcd = 0;
    for (std::size_t i = 0; i < problem.rects.size(); ++i)
      gcd = std::gcd(gcd, std::gcd(problem.rects[i].bytes, problem.floor[i]));
    unit_ = static_cast<double>(std::max<std::int64_t>(gcd, 1));
    exact_ = size(start.height) <= kLargestCoefficient;
    if (!exact_) unit_ = static_cast<double>(start.height) / kLargestCoefficient;
    top_ = column(1, size(bound), size(start.height), false, size(start.height));
    for (std::size_t i = 0; i < problem.rects.size(); ++i) add_rect(i);
    for (std::size_t i = 0; i < problem.rects.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (meet(problem.rects[i], problem.rects[j])) add_pair(i, j);
  }

  MilpResult run(const IlpLimits& limits) { return solve(program_, milp_options(limits, values_, exact_)); }

  // The rects from the lowest address of a solution to the highest.
  [[nodiscard]] std::vector<std::int32_t> from_below(const std::vector<double>& solution) const {
    std::vector<std::int32_t> order(problem_.rects.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return solution[static_cast<std::size_t>(address_[a])] < solution[static_cast<std::size_t>(address_[b])];
    });
    return order;
  }

  [[nodiscard]] std::int64_t bytes(double bound) const {
    return exact_ ? static_cast<std::int64_t>(std::ceil(bound - 1e-3) * unit_)
                  : static_cast<std::int64_t>((bound - 1e-6) * unit_);
  }

 private:
  [[nodiscard]] double size(std::int64_t bytes) const { return static_cast<double>(bytes) / unit_; }

  int column(double cost, double lower, double upper, bool integer, double value) {
    values_.push_back(value);
    return program_.add_column(cost, lower, upper, integer);
  }

  void add_rect(std::size_t i) {
    const double bytes = size(problem_.rects[i].bytes);
    const double floor = size(problem_.floor[i]);
    address_.push_back(column(0, floor, std::max(floor, size(start_.height) - bytes), false, size(start_.at[i])));
    program_.add_row(bytes, kInfinity, {{top_, 1}, {address_[i], -1}});
  }

  void add_pair(std::size_t i, std::size_t j) {
    const double height = size(start_.height);
    const int below = column(0, 0, 1, true, start_.at[i] < start_.at[j] ? 1 : 0);  // 1: i lies below j
    program_.add_row(-kInfinity, height - size(problem_.rects[i].bytes),
                     {{address_[i], 1}, {address_[j], -1}, {below, height}});
    program_.add_row(-kInfinity, -size(problem_.rects[j].bytes),
                     {{address_[j], 1}, {address_[i], -1}, {below, -height}});
  }

  const Floored& problem_;
  const Offsets& start_;
  double unit_ = 1;
  bool exact_ = true;
  MilpProblem program_;
  std::vector<double> values_;
  std::vector<int> address_;
  int top_ = 0;
};

// Each rect lies on what is below it, in the given order.
Offsets stacked(const Floored& problem, std::span<const std::int32_t> from_below) {
  Offsets result{std::vector<std::int64_t>(problem.rects.size(), 0), 0};
  for (std::size_t k = 0; k < from_below.size(); ++k) {
    const std::int32_t i = from_below[k];
    result.at[i] = problem.floor[i];
    for (std::size_t q = 0; q < k; ++q) {
      const std::int32_t j = from_below[q];
      if (meet(problem.rects[i], problem.rects[j]))
        result.at[i] = std::max(result.at[i], result.at[j] + problem.rects[j].bytes);
    }
    result.height = std::max(result.height, result.at[i] + problem.rects[i].bytes);
  }
  return result;
}

}  // namespace

LayoutIlpResult layout_ilp(const Floored& problem, std::int32_t most_rects, const IlpLimits& limits) {
  LayoutIlpResult result;
  result.offsets = best_fit(problem);
  result.bound = height_bound(problem);
  if (result.offsets.height <= result.bound) {
    result.outcome = Outcome::kOptimal;
    return result;
  }
  if (std::ssize(problem.rects) > most_rects) return result;
  result.solver_used = true;
  Program program(problem, result.offsets, result.bound);
  const MilpResult solved = program.run(limits);
  if (solved.values.empty()) return result;
  Offsets found = stacked(problem, program.from_below(solved.values));
  if (found.height < result.offsets.height) result.offsets = std::move(found);
  if (std::isfinite(solved.bound)) result.bound = std::max(result.bound, program.bytes(solved.bound));
  if (solved.outcome == Outcome::kOptimal) result.outcome = Outcome::kOptimal;
  return result;
}

}  // namespace stowage::roam
