// Making a sequence fit: drop or swap gaps until no position holds more than the capacity.
//
//   bytes │      ╭─╮ over            A gap helps at the positions inside it, by at most its bytes and at most what is over there.
//   limit │─ ─ ╭─┼─┼─╮ ─ ─           Its price: the chain that runs again (restore.h), or lane time and stall (lanes.h).
//         │ ╭──╯ │ │ ╰──╮            Greedy by help per price, help counted anew as positions get covered (lazily, on a heap).
//         ╰──────────────── time     A round applies many moves of which none changes what another relies on, each copy where the
//                                    lanes are free by then; then all is accounted anew, with the runs that came in as
//                                    positions of their own, and their copies as gaps of their own.
//
// Just-in-time recomputation, several copies, and block-wise checkpoints come out of it: what a chain makes again is
// kept for its own later use unless its gap in turn is dropped. Covering by ratio: Dobson, "Worst-case analysis of
// greedy heuristics for integer programming with nonnegative data", Math. Oper. Res. 7, 1982. Differs: the positions
// are an evolving set.
#pragma once

#include <cstdint>
#include <limits>

#include "budget/lanes.h"
#include "budget/sequence.h"

namespace stowage::budget {

struct CoverRule {
  double lane_price = 0.02;  // ns that a ns of lane time counts
  double noise = 0;          // scores vary by up to this fraction, by `seed`
  std::uint64_t seed = 0;
  bool recompute = true;
  bool swap = true;
  // What a chain needs is kept for it, even where it does not fit: that pays where others can be made from the same, as
  // concatenations of the same parts can
  bool keep_inputs = false;
  std::int32_t batch = 0;  // moves a round; 0: by the size of the graph
  // ns: given up when the runs again take more, or a copy is late by more
  std::int64_t most_cost = std::numeric_limits<std::int64_t>::max();
};

// True when `sequence` fits `capacity` afterwards; `work` (about a ns a unit) may run out before.
bool cover(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, Link link, const CoverRule& rule,
           std::int64_t& work);

}  // namespace stowage::budget
