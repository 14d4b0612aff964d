// Random generators while kernels of a step run early, for a number that its Python asks for (numbers.h).
#pragma once

#include "runtime/record/tape.h"
#include "runtime/torch/generator.h"

namespace stowage::runtime {

// To `state`: those that the step's draws move; `all`: where a kernel may draw unseen, every one.
inline void set_generators(const Tape& tape, const GeneratorState& state, bool all) {
  all ? state.restore() : state.restore(tape.moved);
}

// At its end Python finds them as they were at its beginning. `all` is asked at the end.
class PythonGenerators {
 public:
  PythonGenerators(const Tape& tape, const bool& all)
      : tape_(tape), all_(all), python_(GeneratorState::current(tape.generators)) {}
  ~PythonGenerators() { set_generators(tape_, python_, all_); }
  PythonGenerators(const PythonGenerators&) = delete;
  PythonGenerators& operator=(const PythonGenerators&) = delete;

 private:
  const Tape& tape_;
  const bool& all_;
  GeneratorState python_;
};

}  // namespace stowage::runtime
