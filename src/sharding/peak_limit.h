// The fastest plan whose peak is at most a limit.
//
//   search ──▶ plan ──▶ peak <= limit: done
//     ▲                    │
//     │     a row for the op of the peak                  (peak_row.h)
//     └──── it has one, a view kept its base alive there: fewer bytes may count (state, saved), by what is too much
//
// Rows are added only for the ops where plans passed the limit: few ops are peaks, and most limits need a handful (lazy
// constraints: Dantzig, Fulkerson and Johnson, Journal of the Operations Research Society of America 2, 1954). Every
// plan within the limit keeps each row, so the first search that finds no plan proves that there is none, and the bound
// under rows is a bound. That no longer holds once fewer bytes may count: such a plan is not proven the fastest, and the
// bound stays that of the rows alone. At most kLimitRounds searches after the first.
#pragma once

#include <functional>

#include "sharding/search.h"

namespace stowage {

// `among`: a search within a budget of counted bytes. Where options have no limit, what it finds.
Found within_limit(Search& search, double budget, const std::function<Found(double budget)>& among);

// What exists before the step, each tensor where it is smallest: no plan has a lower peak.
std::int64_t least_state(const Space& space);

}  // namespace stowage
