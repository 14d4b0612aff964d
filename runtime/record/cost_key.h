// What an op's run time depends on, as text: its name, its tensors' metadata, and its numbers that choose a shape or a
// path.
//
//   aten::addmm(float[2304;1;0], float[512,768;768,1;0], float[768,2304;1,768;0], 1, 1)
//
// Floating-point numbers (learning rates, dropout probabilities) are left out: they change from step to step, and the
// time does not.
#pragma once

#include <string>

#include "runtime/record/tape.h"

namespace stowage::runtime {

std::string cost_key(const Tape& tape, const TapeOp& op);

}  // namespace stowage::runtime
