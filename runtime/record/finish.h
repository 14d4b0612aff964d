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

// A tensor that an op has left without content (empty), and that PyTorch's own code has filled on the host, within a
// function whose reads are noted: of lengths, as Python's own numbers or as a tensor. Such a function fills it before
// any op reads it.
struct FilledInside {
  BlockId block;
  TapeOpId op;  // that made it
  at::Tensor tensor;
  std::string content;  // when an op first read it
  bool read = false;
};

// These become constants that Python makes: where it runs again, over shells, they are filled again.
void settle_filled(Tape& tape, const std::vector<FilledInside>& filled);

// Settles roles and kinds. Sets tape.refusal when the step turns out to be unreplayable. `returned_numbers`: of the ops that
// tell a number, those of which Python makes nothing but what the step returns.
void finish_tape(Tape& tape, const Names& names, const std::vector<HostFilled>& host_filled, bool fake,
                 const std::set<TapeOpId>& returned_numbers);

}  // namespace stowage::runtime
