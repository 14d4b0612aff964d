#include "runtime/evict/call.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/evict/block.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/sparse.h"

namespace stowage::runtime::evict {
namespace {

std::size_t first_argument(const OpTraits& op, const torch::jit::Stack& stack) { return stack.size() - op.arguments; }

at::Generator default_generator() {
  const c10::Device where = budget_device();
  return at::globalContext().defaultGenerator(where);
}

bool in_training(const OpTraits& op, const torch::jit::Stack& stack) {
  const c10::IValue& flag = stack[first_argument(op, stack) + static_cast<std::size_t>(op.training)];
  return flag.isBool() && flag.toBool();
}

bool is_statistics(std::uint16_t argument) { return argument == 3 || argument == 4; }

// Memory that changes only by ops.
bool is_ours(const Operand& operand) {
  if (operand.storage == nullptr) return operand.tensor->unsafeGetTensorImpl()->is_wrapped_number();
  return operand.value != nullptr && !operand.value->known_outside;
}

bool covers_storage(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  return !tensor.is_nested() && tensor.is_contiguous() && tensor.storage_offset() == 0 &&
         tensor.nbytes() == storage.nbytes();
}

bool only_writes(const OpTraits& op) {
  static constexpr std::array<std::string_view, 6> kFills = {"aten::copy_",    "aten::fill_",   "aten::zero_",
                                                             "aten::uniform_", "aten::normal_", "aten::bernoulli_"};
  return std::any_of(kFills.begin(), kFills.end(), [&](std::string_view fill) {
    return op.name.starts_with(fill) && (op.name.size() == fill.size() || op.name[fill.size()] == '.');
  });
}

// Made on the fly for a Python number. One that Python itself holds is copied, so that no recipe keeps a Python object
// alive.
at::Tensor keep_number(const at::Tensor& number) {
  if (number.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr) return number;
  const at::AutoDispatchBelowAutograd below;
  const Unseen ours;  // an op on such a number comes here
  at::Tensor copy = number.clone();
  copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

void describe(Argument& argument, Recipe& recipe, const Operand& operand) {
  const at::Tensor& tensor = *operand.tensor;
  if (!tensor.defined()) return;
  if (operand.storage == nullptr) {
    argument.kind = Argument::Kind::kNumber;
    argument.number = keep_number(tensor);
    return;
  }
  argument.kind = operand.shape_only ? Argument::Kind::kShape : Argument::Kind::kValue;
  argument.written = operand.written;
  argument.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  argument.strides.assign(tensor.strides().begin(), tensor.strides().end());
  argument.offset = tensor.storage_offset();
  argument.storage_bytes = static_cast<std::int64_t>(operand.storage->nbytes());
  argument.dtype = tensor.dtype();
  if (operand.shape_only) return;
  argument.overwritten = operand.overwritten;
  if (argument.overwritten) return;  // its past does not matter
  link_reader(argument, recipe, Ref<Value>(operand.value));
}

}  // namespace

void collect(const OpTraits& op, const torch::jit::Stack& stack, Operands& operands) {
  const std::size_t first = first_argument(op, stack);
  const bool fills = op.writes != 0 && only_writes(op);
  for (std::uint16_t a = 0; a < op.arguments; ++a) {
    const c10::IValue& value = stack[first + a];
    const auto add = [&](const at::Tensor& tensor) {
      Operand operand{&tensor, storage_of(tensor), a, op.writes_argument(a), false, op.reads_only_shape(a), nullptr};
      operand.overwritten =
          operand.written && operand.storage != nullptr && fills && covers_storage(tensor, *operand.storage);
      operands.push_back(operand);
    };
    static const at::Tensor undefined;
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isList() && (value.isTensorList() || value.isOptionalTensorList())) {
      for (const c10::IValue& element : value.toListRef()) add(element.isTensor() ? element.toTensor() : undefined);
    }
  }
  if (op.batch_norm && !in_training(op, stack)) {
    for (Operand& operand : operands) operand.written = false;
  }
}

bool left_out(const OpTraits& op, const torch::jit::Stack& stack, const Operand& operand) {
  return op.batch_norm && is_statistics(operand.argument) && in_training(op, stack);
}

bool can_remember(const OpTraits& op, const torch::jit::Stack& stack, const Operands& operands) {
  if (!op.replayable) return false;
  if (op.any_order && !budget_device().is_cpu() && !at::globalContext().deterministicAlgorithms()) return false;
  const std::size_t first = first_argument(op, stack);
  for (std::size_t a = 0; a < op.arguments; ++a) {
    const c10::IValue& value = stack[first + a];
    if (value.isGenerator() && value.toGenerator() != default_generator()) return false;
    if (value.isPyObject() || value.isObject() || value.isCapsule() || value.isStorage() || value.isStream())
      return false;
  }
  for (const Operand& operand : operands) {
    // Of no other device, not even to look at its shape
    if (operand.tensor->is_nested()) return false;
    if (!operand.tensor->defined() || (operand.shape_only && operand.storage != nullptr)) continue;
    // Without them only where it reads none: it takes another path for mixed dtypes
    if (left_out(op, stack, operand)) {
      if (operand.tensor->dtype() != operands[0].tensor->dtype()) return false;
      continue;
    }
    if (!is_ours(operand) || is_sparse(*operand.tensor)) return false;
    const bool foreign_layout = operand.storage != nullptr && (operand.tensor->is_conj() || operand.tensor->is_neg());
    if (foreign_layout) return false;
  }
  return true;
}

Ref<Recipe> remember(Graph& graph, const c10::OperatorHandle& handle, const OpTraits& op,
                     const torch::jit::Stack& stack, const Operands& operands,
                     const std::shared_ptr<const KernelSettings>& settings) {
  Ref<Recipe> recipe(new Recipe(graph, handle, op));
  recipe->grad_mode = c10::GradMode::is_enabled();
  recipe->settings = settings;
  recipe->arguments = std::make_unique<Argument[]>(operands.size());
  recipe->argument_count = static_cast<std::int32_t>(operands.size());
  const std::size_t first = first_argument(op, stack);
  recipe->slots.resize(op.arguments);
  for (std::size_t a = 0; a < op.arguments; ++a) {
    const c10::IValue& value = stack[first + a];
    Recipe::Slot& slot = recipe->slots[a];
    if (value.isTensor()) {
      slot.kind = Recipe::Slot::Kind::kTensor;
    } else if (value.isList() && value.isTensorList()) {
      slot.kind = Recipe::Slot::Kind::kList;
    } else if (value.isList() && value.isOptionalTensorList()) {
      slot.kind = Recipe::Slot::Kind::kOptionalList;
    } else {
      slot.plain = value;
    }
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    ++recipe->slots[operands[i].argument].count;
    if (!left_out(op, stack, operands[i])) describe(recipe->arguments[i], *recipe, operands[i]);
  }
  return recipe;
}

void collect_results(const OpTraits& op, const torch::jit::Stack& stack,
                     c10::SmallVector<const at::Tensor*, 4>& tensors) {
  for (std::size_t i = stack.size() - op.returns; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      tensors.push_back(&value.toTensor());
    } else if (value.isList() && value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) tensors.push_back(&element.toTensor());
    }
  }
}

std::uint64_t signature_of(const OpTraits& op, const Operands& operands) {
  auto hash = reinterpret_cast<std::uintptr_t>(&op);
  const auto mix = [&](std::uint64_t x) { hash = (hash ^ x) * 0x9E3779B97F4A7C15ULL; };
  for (const Operand& operand : operands) {
    if (operand.storage == nullptr || operand.tensor->is_nested()) continue;
    for (const std::int64_t size : operand.tensor->sizes()) mix(static_cast<std::uint64_t>(size) + 1);
    mix(static_cast<std::uint64_t>(operand.tensor->scalar_type()));
  }
  return hash ^ hash >> 31;
}

}  // namespace stowage::runtime::evict
