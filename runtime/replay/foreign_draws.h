// Has a kernel moved the generator that is not said to draw? Where another thread has meanwhile, nobody can tell.
#pragma once

#include <optional>

#include "runtime/record/tape.h"
#include "runtime/torch/generator.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {

// Around the kernel's run, where that may be taken back. Sets `found`.
class ForeignDraws {
 public:
  ForeignDraws(const Tape& tape, const TapeOp& op, bool watched, bool& found) : tape_(tape), found_(found) {
    if (watched && op.random_order < 0 && !tags_tell_draws(op.handle))
      before_ = GeneratorState::current(tape.generators);
  }
  ~ForeignDraws() {
    if (before_ && !(GeneratorState::current(tape_.generators) == *before_)) found_ = true;
  }
  ForeignDraws(const ForeignDraws&) = delete;
  ForeignDraws& operator=(const ForeignDraws&) = delete;

 private:
  const Tape& tape_;
  std::optional<GeneratorState> before_;
  bool& found_;
};

}  // namespace stowage::runtime
