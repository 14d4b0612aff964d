// Copies at their best times: a schedule of both lanes for the whole line, and room made use of.
//
//   in lane    ····▒▒a▒▒▒▒b▒▒·        Backwards from the uses: each copy in must start by the time at which its use, or the copy
//   ops        ██C██████D███E██       in that follows it on the lane, leaves it just enough.
//   a          ···[██████████         Its place is taken that early if there is room, else as early as there is.
//
// Copies out likewise forwards: the place is kept until the copy is through, if there is room. Covering estimates
// copies one by one while the line still grows; this looks at all of them on the line as it is. O(swaps · steps moved ·
// log n).
#pragma once

#include "budget/lanes.h"

namespace stowage::budget {

void retime(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, Link link);

}  // namespace stowage::budget
