// The order of one leaf as an integer program, solved by HiGHS.
//
//   z[v,t] = 1: op v has run by the end of step t          t      0  1  2  3        A leaf is one or two windows of the order (a forward
//   C[v,t] = z[v,t] - z[v,t-1]: v runs at step t           z[v]   0  1  1  1        one and the backward one that mirrors it). What runs
//   P[e,t] >= z[creator,t-1] - z[user,t-1] for each user   z[u]   0  0  0  1        before, between and after them is fixed, so the
//     of e: e is preserved through step t                  P[e]   0  0  1  1        windows share nothing but the objective.
//
//   minimise M:  M >= base + sum_e bytes_e P[e,t] + sum_v (bytes created by v and inside v) C[v,t]      for every step t
//   precedence   z[v,t] <= z[u,t-1];   spans: z is 0 before asap(v) and 1 from alap(v) on
//   single stream: sum_v z[v,t] = t + 1, asap = |ancestors|, alap = n - 1 - |descendants|
//   multi stream:  ops may share a step; steps are levels: asap and alap by longest paths
//
// The order ILP of ROAM (arXiv 2310.19295), which is that of OLLA (Steiner et al., arXiv 2210.12924), stated with C and
// P alone. Differs:
//   · cumulative z instead of C: the same points and the same relaxation, with two entries a row instead of a span;
//   · P is continuous (at least what z demands, and nothing gains from more), and a mere difference of two z when one user runs last in
//     every order; outputs of an op share its z by construction; ops without output need no rule of their own;
//   · in-place writes, rng and effects, and `after` are precedence without bytes; scratch counts while its op runs.
// Size for n ops: at most n² columns and (n + edges + users) n rows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "order/problem.h"
#include "solver/milp.h"
#include "stowage/outcome.h"

namespace stowage::roam {

enum class Streams : std::uint8_t { kSingle, kMulti };

// Per op of a window, the step at which it runs. Single stream: a permutation.
using Schedule = std::vector<std::int32_t>;

// Largest sum of bytes live at one step; ops of one step run side by side, so that what they create and take inside
// adds up.
std::int64_t schedule_peak(const OrderProblem& window, const Schedule& schedule);

struct IlpLimits {
  std::int64_t nodes = 200;
  std::int64_t iterations = 3'000;   // simplex iterations; 0: none
  double seconds = 0;                // 0: none
  std::int64_t entries = 3'000'000;  // a larger program is not tried
  double relative_gap = 1e-6;
  double slack = 1.0;  // multi stream: steps = slack times the longest path, rounded up
  std::function<bool()> should_stop;
  std::string library;
};

// For the solver. `exact`: the coefficients are whole numbers of bytes, so that solutions less than one apart are equal.
MilpOptions milp_options(const IlpLimits& limits, std::vector<double> start, bool exact);

struct OrderIlpResult {
  Outcome outcome = Outcome::kUnknown;  // kUnknown: nothing better than the start, which is what `schedules` holds
  std::vector<Schedule> schedules;
  std::int64_t peak = 0;   // of the schedules
  std::int64_t bound = 0;  // no schedule (of as many steps) has a smaller peak
};

// `starts` are valid schedules, one per window. Never worse than they are. Throws SolverMissing.
OrderIlpResult order_ilp(std::span<const OrderProblem> windows, std::span<const Schedule> starts, Streams streams,
                         const IlpLimits& limits);

}  // namespace stowage::roam
