// The integer program of strategy choice, for problems small enough: closes what bounds and annealing leave open.
//
//   x[i, s] = 1: node i takes label s        sum over s of x[i, s] = 1
//   y[e, s, t] >= 0 on allowed pairs only    sum over t of y[e, s, t] = x[a, s],   sum over s of y[e, s, t] = x[b, t]
//   each row: sum of usage * x <= limit      minimise costs * x + pair costs * y
//
// The local marginal form (Koster, van Hoesel, Kolen, "The partial constraint satisfaction problem", 1998): y needs no
// integrality once x has it, and a forbidden pair is a column that is not there. Solved by HiGHS (solver/milp.h) under
// a limit of nodes and iterations.
#pragma once

#include <cstdint>
#include <functional>

#include "strategy/choice_network.h"

namespace stowage {

struct MilpChoice {
  Outcome outcome = Outcome::kUnknown;  // also unknown: no solver is there
  Labels labels;                        // empty: none found
  double bound = 0;                     // set unless unknown or infeasible
};

// `start` may be empty; else it keeps the limit. `bound` is known already, as is the penalty's meaning: forbidden.
MilpChoice solve_choice(const ChoiceNetwork& network, const Labels& start, const std::function<bool()>& should_stop);

// Columns and entries grow with this many pairs.
bool fits_milp(const ChoiceNetwork& network);

}  // namespace stowage
