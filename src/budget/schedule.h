// A sequence written out as the steps of a plan, its lifetimes, and the time it takes.
//
//   line      A        B          C           slot before an op:  the copies out issued there, the copies in, the op
//   steps     A   out  B  in      C
//   b         ████████▒▒          ▒▒██████    out: still there until the first step of the slot of `out_by`
//
// What the steps take is predicted by budget/timing.h.
#pragma once

#include <cstdint>
#include <vector>

#include "budget/lanes.h"
#include "budget/sequence.h"
#include "layout/timeline.h"

namespace stowage::budget {

struct Schedule {
  Timeline timeline;
  std::int64_t step_ns = 0;
  std::int64_t recomputed_ops = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t swapped_bytes = 0;  // copied out
};

// Which in-place reuse lays buffers at one address: those without which a position would hold more than `limit`, and if
// `equal` also those of buffers of equal size (a smaller one is laid out as wide as what it lies over).
struct Merging {
  std::int64_t limit = 0;
  bool equal = true;
};
Schedule schedule(const Recipes& recipes, const Sequence& sequence, Link link, Merging merging);

}  // namespace stowage::budget
