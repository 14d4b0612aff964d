// Mixed-integer linear programs, as values; HiGHS solves them (highs_library.h says how it is found).
//
//   minimise  cost · x    subject to   row_lower <= A x <= row_upper,   lower <= x <= upper,   x_j integer where asked
//
//   MilpProblem p;
//   const int take = p.add_column(-3, 0, 1, true);
//   p.add_row(0, 5, {{take, 2.0}});
//   const MilpResult r = solve(p, {});          r.outcome, r.values[take], r.objective, r.bound
//
// The same problem and options give the same result, unless a limit in seconds strikes: one thread, a fixed seed, and
// limits that count nodes and simplex iterations. Figures are doubles: what must be exact is computed anew from the
// rounded values.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "stowage/error.h"
#include "stowage/outcome.h"

namespace stowage {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Of what is to be exact: beyond it feasibility tolerances of 1e-6 would be whole units.
inline constexpr double kLargestCoefficient = 1e6;

struct Term {
  int column;
  double coefficient;
};

struct MilpProblem {
  std::vector<double> cost, lower, upper;  // per column
  std::vector<char> integer;               // per column
  std::vector<double> row_lower, row_upper;
  std::vector<int> row_start{0};  // one more than there are rows
  std::vector<int> entry_column;
  std::vector<double> entry_value;

  int add_column(double column_cost, double column_lower, double column_upper, bool is_integer);
  int add_binary(double column_cost = 0) { return add_column(column_cost, 0, 1, true); }
  // Returns the row's index. A column may appear several times: its coefficients are added up.
  int add_row(double least, double most, std::span<const Term> terms);
  int add_row(double least, double most, std::initializer_list<Term> terms) {
    return add_row(least, most, std::span<const Term>(terms.begin(), terms.size()));
  }

  [[nodiscard]] int columns() const { return static_cast<int>(cost.size()); }
  [[nodiscard]] int rows() const { return static_cast<int>(row_lower.size()); }
  [[nodiscard]] std::size_t entries() const { return entry_column.size(); }

  bool operator==(const MilpProblem&) const = default;
};

struct MilpOptions {
  std::vector<double> start;            // a known solution, one value per column; empty: none
  std::int64_t node_limit = 1'000'000;  // of branch and bound
  std::int64_t iteration_limit = 0;     // simplex iterations, looked at between LPs; 0: none
  double time_limit_seconds = 0;        // outer stop; 0: none. Results that it cuts short do not repeat
  double relative_gap = 0;              // stop when (objective - bound) <= relative_gap * |objective|
  double absolute_gap = 1e-6;           // ... or when the difference is at most this
  std::uint64_t seed = 0;
  std::function<bool()> should_stop;  // outer stop; empty: never
  std::string library;                // path of libhighs; empty: found as highs_library.h says
};

struct MilpResult {
  Outcome outcome = Outcome::kUnknown;  // kOptimal: within the gap asked for; kFeasible: a limit stopped the search
  std::vector<double> values;           // one per column, integers rounded; empty when infeasible or unknown
  double objective = kInfinity;
  double bound = -kInfinity;  // no solution has a smaller objective
  std::int64_t nodes = 0;
  std::int64_t iterations = 0;
};

// Throws SolverMissing; Error for a malformed or unbounded problem.
MilpResult solve(const MilpProblem& problem, const MilpOptions& options);

}  // namespace stowage
