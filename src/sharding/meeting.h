// Homes that may as well live as their only reader wants them.
//
//   maker ──▶ home ──▶ reader          ways only get shorter when they are gone at once (they are cheapest ways: a metric), so a home that
//   maker ─────────▶ reader = home     costs neither bytes nor time, made once and read by one edge at least as often, meets its reader
//
// The edge to the reader then has no flow, and codes that the reader does not want have no column. Exact. O(edges x
// strategies).
#pragma once

#include "sharding/space.h"

namespace stowage {

// Per home: the edge to its reader, or null.
std::vector<const SpaceEdge*> find_meetings(const Space& space);

}  // namespace stowage
