// The call of a recipe, as it ran the first time: the same arguments, settings and random numbers.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>

#include <optional>
#include <utility>

#include "runtime/evict/block.h"
#include "runtime/evict/recompute.h"
#include "runtime/torch/hook.h"

namespace stowage::runtime::evict {
namespace {

// Whatever the program has switched on at this moment, the kernel runs as it did.
struct AsItRan {
  explicit AsItRan(const Recipe& recipe) : grad_mode(recipe.grad_mode), settings(*recipe.settings) {}
  Unseen unseen;  // by a recorder below autograd, too: the step has not asked for this
  c10::impl::ExcludeDispatchKeyGuard no_mode{
      c10::DispatchKeySet(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                               c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                               c10::DispatchKey::FuncTorchDynamicLayerBackMode}) |
                          c10::autocast_dispatch_keyset)};
  at::AutoDispatchBelowADInplaceOrView below;
  c10::AutoGradMode grad_mode;
  SettingsScope settings;
  InKernel in_kernel;
};

// The generator as it was, and back.
class Rewind {
 public:
  explicit Rewind(const GeneratorState* state) {
    if (state == nullptr) return;
    now_ = GeneratorState::current();
    state->restore();
  }
  ~Rewind() {
    if (now_) now_->restore();
  }
  Rewind(const Rewind&) = delete;
  Rewind& operator=(const Rewind&) = delete;

 private:
  std::optional<GeneratorState> now_;
};

at::Tensor tensor_over(const Argument& argument, StoragePtr storage) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      c10::DispatchKeySet(
          c10::computeDispatchKey(c10::typeMetaToScalarType(argument.dtype), c10::kStrided, budget_device())),
      argument.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(argument.sizes, argument.strides, argument.offset);
  return tensor;
}

}  // namespace

torch::jit::Stack stack_for(const Recipe& recipe, const std::vector<StoragePtr>& storages) {
  std::vector<at::Tensor> tensors(storages.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Argument& argument = recipe.arguments[i];
    if (argument.kind == Argument::Kind::kNumber) tensors[i] = argument.number;
    if (storages[i]) tensors[i] = tensor_over(argument, storages[i]);
  }
  torch::jit::Stack stack;
  const at::Tensor* next = tensors.data();
  for (const Recipe::Slot& slot : recipe.slots) {
    const at::Tensor* last = next + slot.count;
    switch (slot.kind) {
      case Recipe::Slot::Kind::kPlain: stack.push_back(slot.plain); break;
      case Recipe::Slot::Kind::kTensor: stack.emplace_back(*next); break;
      case Recipe::Slot::Kind::kList:
        stack.emplace_back(c10::List<at::Tensor>(c10::ArrayRef<at::Tensor>(next, last)));
        break;
      case Recipe::Slot::Kind::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const at::Tensor* tensor = next; tensor != last; ++tensor) {
          list.push_back(tensor->defined() ? std::optional<at::Tensor>(*tensor) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
    next = last;
  }
  return stack;
}

void rerun(const Recipe& recipe, torch::jit::Stack& stack, bool rewind_generator) {
  const AsItRan as_it_ran(recipe);
  const Rewind rewind(rewind_generator ? recipe.generator.get() : nullptr);
  recipe.handle.callBoxed(&stack);
}

}  // namespace stowage::runtime::evict
