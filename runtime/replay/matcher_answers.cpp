// Matching a step: what Python gets back for an op. Kernels do not run: a shell stands for each tensor that they would
// make. Ops that are no kernels run for real.
#include <ATen/core/List.h>

#include <algorithm>
#include <stdexcept>

#include "runtime/replay/arguments.h"
#include "runtime/replay/matcher.h"
#include "runtime/replay/results.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

void Matcher::run_for_real(const TapeOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!op.lifted_copy) run_leaf(op.handle, keys, stack);  // lifted: what Python has made, which host ops go on to write
  // Filled on the host in a moment: whoever reads it takes its content (take_content)
  if (returns_uninitialized(op.handle) &&
      tape_->blocks[tape_->slots[op.results[0].slots[0].index()].block.index()].of_python)
    return;
  if (!take_places(op, *stack)) {
    const std::string how =
        name_with_line(*tape_, op) + " looks elsewhere than the tensor that stands for it did before";
    if (mode_ == Mode::kSection) {
      mismatch_ = how;
      throw std::runtime_error(how);
    }
    return leave(how);
  }
  const auto pass = [&](SlotId id, const at::Tensor& tensor) {
    if (!id.valid() || !tensor.defined() || !tensor.has_storage() || place_of(tensor).block.valid()) return;
    if (tape_->blocks[tape_->slots[id.index()].block.index()].only_read) return;  // a view of what is taken by value
    passing_[tensor.storage().unsafeGetStorageImpl()] = {{tape_->slots[id.index()].block, 0, 0}};
    kept_.push_back(watched(tensor.storage()));
  };
  each_result(op, *stack, pass);
}

void Matcher::answer_with_shells(const TapeOp& op, torch::jit::Stack* stack) {
  const std::size_t count = arguments_on_stack(op);
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    const TensorRef& ref = op.results[r];
    switch (ref.kind) {
      case TensorRef::Kind::kTensor: stack->emplace_back(shell(ref.slots[0], arguments, op)); break;
      case TensorRef::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        for (const SlotId slot : ref.slots) list.push_back(shell(slot, arguments, op));
        stack->emplace_back(std::move(list));
        break;
      }
      default: stack->push_back(op.values[r]); break;
    }
  }
}

// The tensor that stands for a result: an in-place op's own argument, a resident, or a new one over its block's shell.
at::Tensor Matcher::shell(SlotId id, const torch::jit::Stack& arguments, const TapeOp& op) {
  if (!id.valid()) return {};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const TensorRef& ref = op.tensors[i];
    if (ref.kind == TensorRef::Kind::kTensor && ref.slots[0] == id && arguments[i].isTensor())
      return arguments[i].toTensor();
  }
  const Slot& slot = tape_->slots[id.index()];
  const Block& block = tape_->blocks[slot.block.index()];
  if (block.external && block.input < 0) return make_tensor(block.tensor.storage(), slot.meta);
  if (block.external) {
    const at::Tensor& input = inputs_.at(static_cast<std::size_t>(block.input));
    TensorMeta meta = slot.meta;
    meta.storage_offset += span_bytes(input).first / static_cast<std::int64_t>(meta.dtype.itemsize());
    return make_tensor(input.storage(), meta);
  }
  std::optional<Shell>& known = shells_[slot.block.index()];
  if (is_held(known)) return make_tensor(c10::Storage(known->lock()), slot.meta);
  const c10::Storage storage = shell_storage(block.bytes, block.device);
  // Read on the host in a moment; the guard has just seen that it is as recorded
  for (const DataGuard& guard : tape_->data_guards) {
    const bool all = guard.tensor.valid() && tape_->slots[guard.tensor.index()].block == slot.block &&
                     static_cast<std::int64_t>(guard.content.size()) == block.bytes;
    if (!all) continue;
    at::DataPtr memory = c10::GetAllocator(block.device.type())->allocate(guard.content.size());
    device_at(block.device).from_host(memory.get(), guard.content.data(), block.bytes);
    fill_shell(storage, std::move(memory), guard.content.size());
  }
  passing_[storage.unsafeGetStorageImpl()] = {{slot.block, 0, 0}};
  known = watched(storage);
  return make_tensor(storage, slot.meta);
}

}  // namespace stowage::runtime
