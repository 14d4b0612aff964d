// What can only be told once the whole step is on the tape: constants, the part that runs on the host, kinds of blocks.
#pragma once

#include <string>
#include <vector>

#include "runtime/record/names.h"
#include "runtime/record/tape.h"

namespace stowage::runtime {

// A tensor whose content Python wrote outside the dispatcher (torch.tensor([1, 2])), with that content.
struct HostFilled {
  at::Tensor tensor;
  std::string content;  // bytes of its storage; empty for fakes
  TapeOpId lift;        // the op that brought it into the step; none: Python has put another in its place meanwhile
  static HostFilled copy_of(const at::Tensor& tensor, TapeOpId lift);
};

// Settles roles and kinds. Sets tape.refusal when the step turns out to be unreplayable.
void finish_tape(Tape& tape, const Names& names, const std::vector<HostFilled>& host_filled, bool fake);

}  // namespace stowage::runtime
