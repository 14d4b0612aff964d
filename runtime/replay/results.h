// The tensors that an op has left on top of the stack, each with the slot that stands for it on the tape.
//
//   stack   …  (a, [b, c], 3)        each_result:  (slot of a, a)  (slot of b, b)  (slot of c, c)
#pragma once

#include <ATen/core/stack.h>

#include <algorithm>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

// What an op has left on top of the stack looks like what it was recorded to make; numbers are of the same kind.
inline bool has_recorded_form(const Tape& tape, const TapeOp& op, const torch::jit::Stack& stack) {
  const auto alike = [&](SlotId id, const at::Tensor& tensor) {
    if (!id.valid() || !tensor.defined()) return id.valid() == tensor.defined();
    const Slot& slot = tape.slots[id.index()];
    const bool made = std::find(op.creates.begin(), op.creates.end(), slot.block) != op.creates.end();
    return !made || slot.meta.describes(tensor);
  };
  const std::size_t first = stack.size() - op.results.size();
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    const TensorRef& ref = op.results[r];
    const c10::IValue& value = stack[first + r];
    bool same = true;
    if (ref.kind == TensorRef::Kind::kTensor) {
      same = value.isTensor() && alike(ref.slots[0], value.toTensor());
    } else if (ref.kind == TensorRef::Kind::kTensorList) {
      same = value.isTensorList() && value.toTensorVector().size() == ref.slots.size();
      for (std::size_t i = 0; same && i < ref.slots.size(); ++i) same = alike(ref.slots[i], value.toTensorVector()[i]);
    } else {
      same = value.tagKind() == op.values[r].tagKind();
    }
    if (!same) return false;
  }
  return true;
}

// False where a list is shorter than it was recorded.
template <class With>
bool each_result(const TapeOp& op, const torch::jit::Stack& stack, const With& with) {
  bool all = true;
  const std::size_t first = stack.size() - op.results.size();
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    const TensorRef& ref = op.results[r];
    const c10::IValue& value = stack[first + r];
    if (ref.kind == TensorRef::Kind::kTensor) {
      with(ref.slots[0], value.toTensor());
    } else if (ref.kind == TensorRef::Kind::kTensorList) {
      const std::vector<at::Tensor> list = value.toTensorVector();
      for (std::size_t i = 0; i < std::min(list.size(), ref.slots.size()); ++i) with(ref.slots[i], list[i]);
      all = all && list.size() >= ref.slots.size();
    }
  }
  return all;
}

}  // namespace stowage::runtime
