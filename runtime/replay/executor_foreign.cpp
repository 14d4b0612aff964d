// Operators that are not PyTorch's, in the executor. Their kernels may be in Python, and do what no schema tells.
//
//   returns   a result of another form than was recorded     Python waits for it (Matcher::wait_for_form): it is told, and the run is
//                                                            taken back; where the operator has declared the form, an error
//   keeps     what it was given, or returns                  that leaves the arena, where the plan goes on to write
//
// What it takes for itself is the allocation script's (allocation_script.h), and the arena's at the end (Arena::abandon).
#include <ATen/core/List.h>

#include <algorithm>

#include "runtime/memory/allocator.h"
#include "runtime/replay/executor.h"
#include "runtime/replay/results.h"
#include "runtime/torch/tensors.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime {
namespace {

// Tensors that Python does not know over the same memory.
torch::jit::Stack aliases_of(const torch::jit::Stack& stack) {
  const auto alias = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() ? make_alias(tensor.storage(), TensorMeta::of(tensor)) : tensor;
  };
  torch::jit::Stack aliases;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      aliases.emplace_back(alias(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(alias(tensor));
      aliases.emplace_back(std::move(list));
    } else {
      aliases.push_back(value);
    }
  }
  return aliases;
}

std::size_t times_in(const torch::jit::Stack& values, const c10::Storage& storage) {
  std::size_t times = 0;
  const auto count = [&](const at::Tensor& tensor) {
    times += tensor.defined() && tensor.has_storage() &&
             tensor.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) count(value.toTensor());
    if (value.isTensorList()) std::ranges::for_each(value.toTensorVector(), count);
  }
  return times;
}

}  // namespace

// False: the matcher sees that, too, and has the run taken back.
bool Executor::has_its_form(const TapeOp& op, const torch::jit::Stack& stack) {
  const bool waits = parts_ && op.form == TapeOp::Form::kUnsure;
  if (waits) told_ = aliases_of(stack);
  const bool has = has_recorded_form(*tape_, op, stack);
  TORCH_CHECK(has || waits, "stowage: ", name_with_line(*tape_, op),
              " gives a result of another form than was recorded, and than it declares");
  return has;
}

// After the op, when no stack has its tensors any more.
void Executor::let_go_of_held(const TapeOp& op) {
  const auto look_at = [&](BlockId block) {
    const c10::Storage& storage = storages_[block.index()];
    if (tape_->blocks[block.index()].external || !storage || !arena_->holds(storage.data())) return;
    std::size_t ours =
        1 + times_in(told_, storage) + (torch_versions::python_has(*storage.unsafeGetStorageImpl()) ? 1 : 0);
    for (const SlotId slot : slots_of_[block.index()]) {
      at::Tensor& tensor = tensors_[slot.index()];
      if (!tensor.defined()) continue;
      // The one that Python has seen is its own from now on
      tensor = make_alias(storage, tape_->slots[slot.index()].meta);
      ++ours;
    }
    if (storage.use_count() <= ours) return;
    const std::size_t bytes = storage.nbytes();
    at::DataPtr memory;
    {
      const Unarmed outside;
      memory = c10::GetAllocator(storage.device().type())->allocate(bytes);
    }
    device_at(storage.device()).copy(memory.get(), storage.data(), static_cast<std::int64_t>(bytes));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    script_.count_beside(0, 1, 0);
  };
  for_each_access(*tape_, op, [&](BlockId block, Access) { look_at(block); });
  for (const BlockId block : op.creates) look_at(block);
}

}  // namespace stowage::runtime
