// Best fit in time order: the allocator that a program would use, replayed.
//
//   Events run in time order, frees before allocations. Free blocks lie in a set ordered by size; an allocation takes the
//   smallest block that holds it (ties: the lowest), or grows the arena at its end. Neighbouring free blocks coalesce.
//   Allocations of one moment go longest-lived first, so that what stays lies low.
//
// O(n log n), the only layout here that is: the fast path for a million items. Knuth, The Art of Computer Programming
// vol. 1, section 2.5 (best fit, boundary coalescing). Weakness: it sees no future but the lifetimes within one moment.
#pragma once

#include "layout/instance.h"

namespace stowage {

Offsets sweep_fit(const LayoutInstance& instance);

}  // namespace stowage
