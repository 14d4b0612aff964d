#include "runtime/record/host_fills.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/memory/allocator.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {

// torch.tensor(3.): Python has filled a tensor on the host, and brings it into the step. The step's Python does not run
// again, so it is a constant; in an optimizer section, where it does, the matcher refreshes it.
void HostFills::lift(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;  // refused where it is used
  const bool shared = !fake_ && of_another_library(tensor.storage());
  if (!fake_ && !names_.block_of(tensor).valid()) {
    const SlotId slot =
        names_.declare(tensor, BufferKind::kConstant, "constant_" + std::to_string(tape_.blocks.size()));
    const bool in_section = !tape_.sections.empty() && tape_.sections.back().to < 0;
    if (slot.valid()) tape_.blocks[tape_.slots[slot.index()].block.index()].refreshed = in_section;
    if (slot.valid()) tape_.blocks[tape_.slots[slot.index()].block.index()].shared = shared;
    shares_memory_ |= shared;
  }
  // Not Python's own object, whose count would not tell whether Python still holds it
  const at::Tensor held = fake_ ? tensor : make_alias(tensor.storage(), TensorMeta::of(tensor));
  by_python_.push_back(HostFilled::copy_of(held, TapeOpId(tape_.ops.size())));
}

std::map<BlockId, TapeOpId> HostFills::written_and_held(const KeptWrites& kept,
                                                        const std::vector<at::Tensor>& allowed) const {
  if (fake_ || by_python_.empty()) return {};
  std::set<BlockId> written;
  for (const TapeOp& op : tape_.ops) {
    for_each_access(tape_, op, [&](BlockId block, Access access) {
      if (access == Access::kWrite) written.insert(block);
    });
  }
  std::map<const c10::StorageImpl*, std::set<const c10::TensorImpl*>> own;
  const auto count = [&](const at::Tensor& tensor) {
    own[tensor.storage().unsafeGetStorageImpl()].insert(tensor.unsafeGetTensorImpl());
  };
  for (const HostFilled& filled : by_python_) {
    count(filled.tensor);
    const BlockId block = names_.block_of(filled.tensor);
    if (block.valid() && tape_.blocks[block.index()].tensor.defined()) count(tape_.blocks[block.index()].tensor);
  }
  for (const at::Tensor& tensor : allowed) {
    if (tensor.has_storage() && own.contains(tensor.storage().unsafeGetStorageImpl())) count(tensor);
  }
  std::map<BlockId, TapeOpId> found;
  for (const HostFilled& filled : by_python_) {
    const BlockId block = names_.block_of(filled.tensor);
    if (!filled.lift.valid() || !written.contains(block)) continue;
    const c10::Storage& storage = filled.tensor.storage();
    const std::size_t ours = own.at(storage.unsafeGetStorageImpl()).size() + (kept.holds(storage) ? 1 : 0);
    if (storage.use_count() > ours) found.emplace(block, filled.lift);
  }
  return found;
}

std::string HostFills::look_at(const TapeOp& op, std::size_t argument, const c10::IValue& value) {
  std::string why;
  const bool lifts = lifts_host_data(op.handle) && value.isTensor();
  if (shares_memory_ && !lifts) why = look_at_shared(op, argument, value);
  if (!inside_.empty()) look_at_filled(op, argument, value);
  return why;
}

std::string HostFills::look_at_shared(const TapeOp& op, std::size_t argument, const c10::IValue& value) {
  std::string why;
  const auto look = [&](const at::Tensor& tensor) {
    if (why.empty()) why = look_at_shared(op, argument, tensor);
  };
  if (value.isTensor()) {
    look(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) look(tensor.value_or(at::Tensor()));
  }
  return why;
}

std::string HostFills::look_at_shared(const TapeOp& op, std::size_t argument, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const BlockId block = names_.block_of(tensor);
  if (!block.valid() || !tape_.blocks[block.index()].shared) return {};
  if (writes_argument(op.handle, argument)) {
    return full_name(op.handle) +
           " writes into memory that the step's Python also has as an array; copy it first: torch.tensor(array)";
  }
  const auto filled =
      std::ranges::find_if(by_python_, [&](const HostFilled& known) { return names_.block_of(known.tensor) == block; });
  if (filled != by_python_.end() && bytes_of(tensor.storage()) != filled->content)
    return "the step writes into an array after it has made a tensor over its memory; copy it first: "
           "torch.tensor(array)";
  return {};
}

void HostFills::look_at_filled(const TapeOp& op, std::size_t argument, const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || reads_only_shape(op.handle, argument)) return;
  const BlockId block = names_.block_of(value.toTensor());
  const auto filled = std::ranges::find(inside_, block, &FilledInside::block);
  if (!block.valid() || filled == inside_.end()) return;
  if (writes_argument(op.handle, argument)) {  // as any other op's result; where it was read before, finish() refuses
    inside_.erase(filled);
  } else if (!filled->read) {
    filled->read = true;
    filled->content = bytes_of(filled->tensor.storage());
  }
}

void HostFills::take_result(const TapeOp& op, const torch::jit::Stack& stack) {
  const bool filled = within_ && !fake_ && op.section < 0 && op.creates.size() == 1 &&
                      returns_uninitialized(op.handle) && stack.back().toTensor().is_cpu();
  if (filled) inside_.push_back({op.creates[0], TapeOpId(tape_.ops.size()), stack.back().toTensor(), {}});
}

}  // namespace stowage::runtime
