// x[mask], nonzero(x): how large the result is, depends on data. What decides it can be asked for beforehand, by two
// ops of their own:
//
//   Python    x[mask]
//   tape      count_nonzero(mask) -> n   _local_scalar_dense(n)   index(x, mask)
//
// bincount() and unique() are asked for by operators of our own, which count the bins and the different numbers.
//
// Recorder and matcher ask the same, so such a number is like any that Python asks for: watched where it follows from
// the arguments (data_guards.h), else worked out while Python waits (numbers.h). Another number: another recording.
#pragma once

#include <torch/library.h>

#include <vector>

namespace stowage::runtime {

struct ShapeQuestion {
  c10::OperatorHandle count;  // its one result is then read by _local_scalar_dense
  torch::jit::Stack arguments;
};

// Those of an op on its arguments. Empty where the shape does not depend on data, or nothing tells it but the op itself
// (unique of rows).
std::vector<ShapeQuestion> shape_questions(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// An op that refuses nothing of what its question has let pass.
bool refuses_when_asked(const c10::OperatorHandle& op);

c10::OperatorHandle scalar_reader();

}  // namespace stowage::runtime
