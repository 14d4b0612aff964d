// The fastest plan where collectives run beside kernels (timeline.h): plain sums, at prices that change.
//
//   kernels  ▒▒▒▒▒▒▒░░░      The step takes at least as long as any one of these is busy: all kernels and what they wait for
//   axis 0   ▒▒▒▒▒▒▒▒▒▒      (waits.h), or the link of any axis. So it takes at least any weighted mean of them: with prices
//   axis 1   ▒▒▒             that sum up to 1, the least cost of all plans is a bound, and a plain sum again.
//
// After the kernels of forward and backward come the optimizer's, and on each axis what it brings back to where parameters
// live: each of these is added to the first row, in shares of its price. Latencies that buckets may share count nothing.
//
// A round finds the plan of the least cost at its prices, as without overlap. Its time comes from the timeline. Then what is
// busiest in that plan gets dearer (multiplicative weights; Arora, Hazan and Kale, Theory of Computing 8, 2012; the prices
// are multipliers of a Lagrangian relaxation of the maximum). The best plan of all rounds is shown, with the best bound.
//
// Before these rounds come some at prices that add up to more: the plain sum, and sums in which links count less. They give
// no bound. Their plans waste little on any link, and are often the fastest.
//
// A few rounds find most: plans change little between prices. What remains open is the gap between the busiest resource and
// the timeline, and between prices and the maximum itself: a plan that meets its bound is rare.
#pragma once

#include "sharding/search.h"

namespace stowage {

// In so many seconds (0: no end); `plan`: how one is found at the prices that the search has.
Found find_overlapped(Search& search, double eps, double seconds, const Find& plan);

// How long kernels, what they wait for and what comes after them take; then the link of each axis.
std::vector<double> loads_of(const Space& space, const Choice& choice);

}  // namespace stowage
