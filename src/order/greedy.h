// List scheduling: near-linear orders for a start.
//
//   Forced moves run at once (forced.h). Only when all ready ops rise (or do not fit under the limit) is there a choice, and the
//   rule makes it. When nothing fits, the op with the least step runs and the limit rises with it.
//
//   rule            takes, of the ready ops that fit                                            after
//   kProgramOrder   the first in program order                                                  eager
//   kLeastRise      the one that leaves the fewest live bytes                                   LESCEA, XLA's list scheduler
//
// The same rules on the reversed problem give other orders: there "as early as loses nothing" becomes "as late as loses
// nothing". O((V + E) log V): kLeastRise passes over at most 64 ready ops that do not fit, then takes the one with the
// least step.
#pragma once

#include <cstdint>
#include <vector>

#include "order/ordering.h"
#include "order/problem.h"

namespace stowage {

enum class GreedyRule : std::uint8_t { kProgramOrder, kLeastRise };

Ordering greedy(const OrderProblem& problem, GreedyRule rule, std::int64_t limit);

}  // namespace stowage
