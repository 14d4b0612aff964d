// An argument of an op as the tape has it beside the one that is given now.
#pragma once

#include "runtime/memory/bytes.h"
#include "runtime/record/tape.h"

namespace stowage::runtime {

// Both of the same kind, and neither decides a shape: it may change from step to step.
bool is_number_of_the_same_kind(const TapeOp& op, std::size_t i, const c10::IValue& value);
// Of numbers of the same kind: the same to the last bit.
bool same_number(const c10::IValue& a, const c10::IValue& b);
// The same bits of the same kind: 0.0 is not -0.0, and NaN is itself.
bool same_value(const c10::IValue& a, const c10::IValue& b);

// Of an op that tells numbers which the step makes: those that it has told when it was recorded. Of anything else than numbers that
// is not known.
bool tells_recorded_numbers(const TapeOp& op, const std::vector<c10::IValue>& told);

inline bool same_content(const at::Tensor& a, const at::Tensor& b) { return same_bytes(a.storage(), b.storage()); }

// A copy of what Python has lifted stands for lift_fresh(), which has one argument.
inline std::size_t arguments_on_stack(const TapeOp& op) { return op.lifted_copy ? 1 : op.arguments.size(); }

// visit(slot, tensor) for each tensor that is recorded there and given now; false where they are not of one kind and
// count.
template <class Visit>
bool for_each_tensor(const TensorRef& ref, const c10::IValue& value, const Visit& visit) {
  switch (ref.kind) {
    case TensorRef::Kind::kTensor:
      if (!value.isTensor()) return false;
      visit(ref.slots[0], value.toTensor());
      return true;
    case TensorRef::Kind::kTensorList: {
      if (!value.isTensorList()) return false;
      const std::vector<at::Tensor> list = value.toTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) visit(ref.slots[i], list[i]);
      return true;
    }
    case TensorRef::Kind::kOptionalTensorList: {
      if (!value.isOptionalTensorList()) return false;
      const auto list = value.toOptionalTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) visit(ref.slots[i], list[i].value_or(at::Tensor()));
      return true;
    }
    case TensorRef::Kind::kNone: break;
  }
  return false;
}

}  // namespace stowage::runtime
