// Redistributions that a kernel waits for whatever the times are: those between a kernel and the very next one.
//
//   kernel m ──▶ its result lives elsewhere ──▶ a view of it ──▶ brought where kernel m + 1 needs it       m + 1 cannot begin meanwhile
//
// Only views lie between the two. One such path for each kernel, so that the sum of all kernels and of all these paths is a
// lower bound of the step's time. And after all kernels of forward and backward comes what the optimizer brings back to where
// it lives, on each axis one after the other (link_prices.h). O(slots).
#pragma once

#include "sharding/space.h"

namespace stowage {

// Marks edges of which each instance lies on such a path outside the optimizer, and late ones.
void mark_waits(Space& space);

// Per unit class: each of its units is of the optimizer, and only such ones come after it.
std::vector<char> find_late(const Space& space);

}  // namespace stowage
