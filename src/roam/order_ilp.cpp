#include "roam/order_ilp.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "roam/spans.h"
#include "solver/milp.h"

namespace stowage::roam {
namespace {

// A column, or a constant when the span fixes it.
struct Binary {
  int column = -1;
  double constant = 0;
};

// Bytes as coefficients: divided by their greatest common divisor, and further when they are still large.
class Units {
 public:
  explicit Units(std::span<const OrderProblem> windows) {
    std::int64_t gcd = 0, largest = 1;
    const auto take = [&](std::int64_t bytes) {
      gcd = std::gcd(gcd, bytes);
      largest = std::max(largest, std::abs(bytes));
    };
    for (const OrderProblem& w : windows) {
      for (const std::int64_t bytes : w.weight) take(bytes);
      for (const std::int64_t bytes : w.extra) take(bytes);
      take(w.base - windows[0].base);
    }
    base_ = windows[0].base;
    unit_ = static_cast<double>(std::max<std::int64_t>(gcd, 1));
    exact_ = static_cast<double>(largest) / unit_ <= kLargestCoefficient;
    if (!exact_) unit_ = static_cast<double>(largest) / kLargestCoefficient;
  }
  // Peaks count from the base of the first window, so that large constants do not eat the precision.
  [[nodiscard]] double size(std::int64_t bytes) const { return static_cast<double>(bytes) / unit_; }
  [[nodiscard]] double peak(std::int64_t bytes) const { return size(bytes - base_); }
  [[nodiscard]] std::int64_t bytes_above(double value) const {
    if (exact_) return base_ + static_cast<std::int64_t>(std::ceil(value - 1e-3) * unit_);
    return base_ + static_cast<std::int64_t>(std::ceil((value - 1e-6) * unit_));
  }
  [[nodiscard]] bool exact() const { return exact_; }

 private:
  std::int64_t base_ = 0;
  double unit_ = 1;
  bool exact_ = true;
};

// Adds one window to the program.
class WindowRows {
 public:
  WindowRows(const OrderProblem& window, const Schedule& start, Streams streams, double slack, const Units& units,
             int peak_column, MilpProblem& program, std::vector<double>& values)
      : window_(window),
        start_(start),
        units_(units),
        peak_(peak_column),
        program_(program),
        values_(values),
        spans_(spans(window, streams, slack)),
        reach_(window) {
    add_columns();
    add_chains();
    if (streams == Streams::kSingle) add_one_op_a_step();
    add_bytes();
  }

  // The steps of a solution.
  [[nodiscard]] Schedule schedule(const std::vector<double>& solution) const {
    Schedule steps(start_.size());
    for (std::int32_t op = 0; op < window_.ops; ++op) {
      std::int32_t t = spans_.asap[op];
      while (t < spans_.alap[op] && solution[static_cast<std::size_t>(z(op, t).column)] < 0.5) ++t;
      steps[op] = t;
    }
    return steps;
  }

 private:
  [[nodiscard]] Binary z(std::int32_t op, std::int32_t t) const {
    if (t < spans_.asap[op]) return {-1, 0};
    if (t >= spans_.alap[op]) return {-1, 1};
    return {first_[op] + (t - spans_.asap[op]), 0};
  }

  void add_columns() {
    for (std::int32_t op = 0; op < window_.ops; ++op) {
      first_.push_back(program_.columns());
      for (std::int32_t t = spans_.asap[op]; t < spans_.alap[op]; ++t) {
        program_.add_binary();
        values_.push_back(start_[op] <= t ? 1 : 0);
      }
    }
  }

  // sum of coefficient * binary, the constants apart.
  struct Sum {
    std::vector<Term> terms;
    double constant = 0;
    void add(Binary b, double coefficient) {
      if (coefficient == 0) return;
      if (b.column >= 0)
        terms.push_back({b.column, coefficient});
      else
        constant += coefficient * b.constant;
    }
  };

  void add_chains() {
    for (std::int32_t op = 0; op < window_.ops; ++op) {
      for (std::int32_t t = spans_.asap[op]; t + 1 < spans_.alap[op]; ++t) at_most(z(op, t), z(op, t + 1));
      for (const std::int32_t p : window_.preds[op])
        for (std::int32_t t = spans_.asap[op]; t <= spans_.alap[p]; ++t) at_most(z(op, t), z(p, t - 1));
    }
  }

  void at_most(Binary a, Binary b) {
    if ((a.column < 0 && a.constant == 0) || (b.column < 0 && b.constant == 1)) return;
    Sum sum;
    sum.add(a, 1);
    sum.add(b, -1);
    program_.add_row(-kInfinity, -sum.constant, sum.terms);
  }

  void add_one_op_a_step() {
    for (std::int32_t t = 0; t + 1 < spans_.steps; ++t) {
      Sum sum;
      for (std::int32_t op = 0; op < window_.ops; ++op) sum.add(z(op, t), 1);
      const double count = t + 1 - sum.constant;
      if (!sum.terms.empty()) program_.add_row(count, count, sum.terms);
    }
  }

  // The closers of a weight that no other closer has to wait for.
  [[nodiscard]] std::vector<std::int32_t> last_closers(std::int32_t weight) const {
    std::vector<std::int32_t> last;
    for (const std::int32_t a : window_.closers[weight]) {
      const bool before_another =
          std::ranges::any_of(window_.closers[weight], [&](std::int32_t b) { return b != a && reach_(a, b); });
      if (!before_another) last.push_back(a);
    }
    return last;
  }

  [[nodiscard]] Binary opened_by(std::int32_t weight, std::int32_t t) const {
    if (window_.open_at_start[weight]) return {-1, 1};
    return t < 0 ? Binary{-1, 0} : z(window_.openers[weight][0], t);
  }

  // Adds bytes * P[weight, t] to the row.
  void add_preserved(std::int32_t weight, const std::vector<std::int32_t>& last, std::int32_t t, double bytes,
                     Sum& row) {
    const Binary opened = opened_by(weight, t - 1);
    if (opened.column < 0 && opened.constant == 0) return;
    if (window_.open_at_end[weight]) return row.add(opened, bytes);
    if (last.size() == 1) {
      row.add(opened, bytes);
      return row.add(t == 0 ? Binary{} : z(last[0], t - 1), -bytes);
    }
    const bool surely_open = opened.column < 0;
    bool all_surely_closed = true;
    for (const std::int32_t closer : last) {
      const Binary closed = t == 0 ? Binary{} : z(closer, t - 1);
      if (surely_open && closed.column < 0 && closed.constant == 0) return row.add({-1, 1}, bytes);
      all_surely_closed &= closed.column < 0 && closed.constant == 1;
    }
    if (!all_surely_closed) row.add({preserved_column(opened, last, t), 0}, bytes);
  }

  int preserved_column(Binary opened, const std::vector<std::int32_t>& last, std::int32_t t) {
    const int column = program_.add_column(0, 0, 1, false);
    const auto value = [&](Binary b) {
      return b.column < 0 ? b.constant : values_[static_cast<std::size_t>(b.column)];
    };
    double needed = 0;
    for (const std::int32_t closer : last) {
      const Binary closed = t == 0 ? Binary{} : z(closer, t - 1);
      if (closed.column < 0 && closed.constant == 1) continue;
      needed = std::max(needed, value(opened) - value(closed));
      Sum sum;  // P - opened + closed >= 0
      sum.terms.push_back({column, 1});
      sum.add(opened, -1);
      sum.add(closed, 1);
      program_.add_row(-sum.constant, kInfinity, sum.terms);
    }
    values_.push_back(needed);
    return column;
  }

  void add_bytes() {
    std::vector<std::vector<std::int32_t>> last;
    for (std::size_t w = 0; w < window_.weight.size(); ++w) last.push_back(last_closers(static_cast<std::int32_t>(w)));
    for (std::int32_t t = 0; t < spans_.steps; ++t) {
      Sum row;
      row.constant = units_.peak(window_.base);
      for (std::size_t w = 0; w < window_.weight.size(); ++w)
        add_preserved(static_cast<std::int32_t>(w), last[w], t, units_.size(window_.weight[w]), row);
      for (std::int32_t op = 0; op < window_.ops; ++op) {
        if (t < spans_.asap[op] || t > spans_.alap[op]) continue;
        std::int64_t bytes = window_.extra[op];
        for (const std::int32_t w : window_.opens[op]) bytes += window_.weight[w];
        row.add(z(op, t), units_.size(bytes));
        if (t > 0) row.add(z(op, t - 1), -units_.size(bytes));
      }
      row.terms.push_back({peak_, -1});
      program_.add_row(-kInfinity, -row.constant, row.terms);
    }
  }

  const OrderProblem& window_;
  const Schedule& start_;
  const Units& units_;
  int peak_;
  MilpProblem& program_;
  std::vector<double>& values_;
  Spans spans_;
  Reach reach_;
  std::vector<int> first_;  // per op: the column of z[op, asap]
};

bool is_valid(const OrderProblem& window, const Schedule& schedule, Streams streams) {
  for (std::int32_t op = 0; op < window.ops; ++op)
    for (const std::int32_t p : window.preds[op])
      if (schedule[p] >= schedule[op]) return false;
  if (streams == Streams::kMulti) return true;
  Schedule sorted = schedule;
  std::sort(sorted.begin(), sorted.end());
  for (std::int32_t t = 0; t < window.ops; ++t)
    if (sorted[t] != t) return false;
  return true;
}

std::int64_t largest_peak(std::span<const OrderProblem> windows, std::span<const Schedule> schedules) {
  std::int64_t most = windows[0].base;
  for (std::size_t w = 0; w < windows.size(); ++w) most = std::max(most, schedule_peak(windows[w], schedules[w]));
  return most;
}

// An upper estimate of the size of the program.
std::int64_t estimated_entries(const OrderProblem& window, const Spans& s) {
  std::int64_t entries = 0;
  for (std::int32_t op = 0; op < window.ops; ++op)
    entries += static_cast<std::int64_t>(s.alap[op] - s.asap[op]) *
               (4 + 2 * static_cast<std::int64_t>(window.preds[op].size()) +
                2 * static_cast<std::int64_t>(window.closes[op].size()));
  return entries;
}

}  // namespace

std::int64_t schedule_peak(const OrderProblem& window, const Schedule& schedule) {
  const std::int32_t steps = schedule.empty() ? 0 : *std::max_element(schedule.begin(), schedule.end()) + 1;
  std::vector<std::int64_t> live(static_cast<std::size_t>(steps) + 1, 0);  // changes, then sums
  for (std::size_t w = 0; w < window.weight.size(); ++w) {
    std::int32_t from = 0, to = steps;
    if (!window.open_at_start[w]) from = schedule[window.openers[w][0]];
    if (!window.open_at_end[w]) {
      to = from;
      for (const std::int32_t closer : window.closers[w]) to = std::max(to, schedule[closer] + 1);
    }
    live[from] += window.weight[w];
    live[to] -= window.weight[w];
  }
  std::vector<std::int64_t> inside(live.size(), 0);
  for (std::int32_t op = 0; op < window.ops; ++op) inside[schedule[op]] += window.extra[op];
  std::int64_t now = window.base, most = window.base;
  for (std::int32_t t = 0; t < steps; ++t) most = std::max(most, (now += live[t]) + inside[t]);
  return most;
}

MilpOptions milp_options(const IlpLimits& limits, std::vector<double> start, bool exact) {
  MilpOptions options;
  options.start = std::move(start);
  options.node_limit = limits.nodes;
  options.iteration_limit = limits.iterations;
  options.time_limit_seconds = limits.seconds;
  options.relative_gap = limits.relative_gap;
  options.absolute_gap = exact ? 0.5 : 1e-6;
  options.should_stop = limits.should_stop;
  options.library = limits.library;
  return options;
}

OrderIlpResult order_ilp(std::span<const OrderProblem> windows, std::span<const Schedule> starts, Streams streams,
                         const IlpLimits& limits) {
  OrderIlpResult result{Outcome::kUnknown, {starts.begin(), starts.end()}, largest_peak(windows, starts), 0};
  std::int64_t entries = 0;
  for (const OrderProblem& window : windows) entries += estimated_entries(window, spans(window, streams, limits.slack));
  if (entries > limits.entries) return result;

  const Units units(windows);
  MilpProblem program;
  std::vector<double> values;
  std::int64_t base = windows[0].base;
  for (const OrderProblem& window : windows) base = std::max(base, window.base);
  const int peak_column = program.add_column(1, units.peak(base), kInfinity, false);
  values.push_back(units.peak(result.peak));
  std::vector<WindowRows> parts;
  for (std::size_t w = 0; w < windows.size(); ++w)
    parts.emplace_back(windows[w], starts[w], streams, limits.slack, units, peak_column, program, values);

  const MilpResult solved = solve(program, milp_options(limits, std::move(values), units.exact()));
  if (solved.values.empty()) return result;

  result.outcome = solved.outcome;
  if (std::isfinite(solved.bound)) result.bound = units.bytes_above(solved.bound);
  std::vector<Schedule> found;
  for (std::size_t w = 0; w < windows.size(); ++w) {
    found.push_back(parts[w].schedule(solved.values));
    if (!is_valid(windows[w], found.back(), streams))
      return {Outcome::kUnknown, std::move(result.schedules), result.peak, result.bound};
  }
  const std::int64_t peak = largest_peak(windows, found);
  if (peak < result.peak) {
    result.peak = peak;
    result.schedules = std::move(found);
  }
  return result;
}

}  // namespace stowage::roam
