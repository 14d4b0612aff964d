// What a choice leaves open, settled the cheapest way.
//
//   homes given       ──▶  each unit's cheapest strategy            settle_strategies: exact, units depend on homes alone
//   strategies given  ──▶  each uncounted home's cheapest code      settle_homes: of equally cheap ones that of the fewest bytes
//
// The search leaves homes that do not count anywhere on the cheapest ways between their maker and their readers: a
// gathered copy made early costs no more time than one made late, but is alive for longer. Alternating the two is
// coordinate descent: time never rises, nor do the bytes that count. O(rounds x edges x codes x strategies).
#pragma once

#include "sharding/space.h"

namespace stowage {

// Units whose copies count keep their strategy.
void settle_strategies(const Space& space, Choice& choice);

// Homes that count, and those that a unit whose copies count reads or makes, keep their code.
void settle_homes(const Space& space, Choice& choice);

// Both in turn until nothing changes, a few times at most.
void settle(const Space& space, Choice& choice);

}  // namespace stowage
