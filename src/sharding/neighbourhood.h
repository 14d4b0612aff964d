// What lies between known choices: axis by axis, each tensor and each unit as one of them has it.
//
//   known    S0,R,R   R,S1,S1        between    S0,R,R   S0,R,S1   S0,S1,R   S0,S1,S1   R,R,R   R,R,S1   R,S1,R   R,S1,S1
//
// A search among these alone is small where the mesh has many axes, and ends no worse than the best of the known ones
// (relaxation-induced neighbourhoods: Danna, Rothberg and Le Pape, Mathematical Programming 102, 2005). O(known * axes *
// (codes + strategies)).
#pragma once

#include <vector>

#include "sharding/space.h"

namespace stowage {

struct Neighbourhood {
  std::vector<std::vector<char>> homes, strategies;  // per home its codes, per unit its usable strategies: 1 inside
};

// On the axes of `loose` (a bit for each) everything is inside. A choice has -1 where it says nothing; where none says
// anything, all is inside.
Neighbourhood between(const Space& space, const std::vector<Choice>& known, unsigned loose = 0);

}  // namespace stowage
