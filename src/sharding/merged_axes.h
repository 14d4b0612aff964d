// Two neighbouring axes of a mesh seen as one: a smaller problem whose plans are plans of the whole.
//
//   (4, 4, 4)   axes 0 and 1 as one: (16, 4)      S1,S0 there is S1,S1,S0 here        the same bytes: ceil(ceil(n/4)/4) = ceil(n/16)
//               axes 1 and 2 as one: (4, 16)      S1,S0 there is S1,S0,S0 here
//
// What is lost are placements that tell the two axes apart. On three axes of 4 a tensor of two dimensions has 27
// placements, on two axes 9, and the integer programs shrink in proportion of their squares. O(homes + strategies) for
// one choice.
#pragma once

#include <cstddef>

#include "sharding/space.h"

namespace stowage {

// Axes `first` and `first` + 1 as one, as slow as the slower of them.
Mesh merge_axes(const Mesh& mesh, std::size_t first);

Prices merge_axes(Prices prices, std::size_t first);

// Placements that are given, for such a mesh: those that treat the two axes alike.
std::map<std::int32_t, MeshPlacement> merge_axes(const std::map<std::int32_t, MeshPlacement>& fixed, std::size_t first);

// The choice of the merged mesh's space, in the space of the whole mesh; -1: there is no such code or strategy.
Choice split_axes(const Space& whole, const Space& merged, const Choice& choice, std::size_t first);

}  // namespace stowage
