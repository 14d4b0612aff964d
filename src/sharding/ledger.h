// The ledger: what a choice costs, counted tensor by tensor and op by op in the whole program, without the classes that
// the search used. Its sums must be the search's objective.
#pragma once

#include "sharding/space.h"

namespace stowage {

ShardingPlan make_ledger(const Space& space, const Choice& choice);

}  // namespace stowage
