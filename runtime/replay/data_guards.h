// Decisions on data: `if mask.all():` in the step's Python. Where such a number follows from arguments and residents as
// they are before the step, a small part of the tape works it out before each call:
//
//   argument mask ──all──► t ──item──► True     as when the step was recorded?  then this recording may serve
#pragma once

#include <string>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

// "" when each number is what it was when the step was recorded, else the first that is not. `inputs` by argument
// number. Costs what the ops cost that lead to the numbers; memory for their results comes from the allocator.
std::string changed_decision(const Tape& tape, const std::vector<at::Tensor>& inputs);

}  // namespace stowage::runtime
