// A search on many axes by searches on few: on three axes and more, one among all plans is too large to end in a minute.
//
//   (4,4,4) ──▶ (16,4) and (4,16), each planned by itself ──┐                                      ┌── one axis free ◀─┐
//           └─▶ the plan of the fewest bytes ───────────────┴──▶ between these (neighbourhood.h) ──┴─▶ two axes free ──┘
//
// Guides come first: plans of the mesh with two neighbouring axes as one (merged_axes.h), and that of the fewest bytes.
// Then the best plan between all of them is searched for. From there, one axis in turn is free, and on the others all
// stays as in the best plan so far; then two; until no turn helps. Each such search is about as large as a plan on so
// many axes. It looks at some choices, not at all, so no bound comes from it. A large neighbourhood search (Shaw, CP
// 1998) whose neighbourhoods are sets of axes. Each search has a share of the time that is left. A plan that is known is
// a guide, too. Where it was found with as many bytes, at other prices, it stands for the merged meshes.
#pragma once

#include "sharding/search.h"

namespace stowage {

// `plan`: how a mesh with fewer axes is planned.
Found search_in_small(Search& search, double eps, const Find& plan);

}  // namespace stowage
