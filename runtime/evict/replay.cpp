// Running a recipe: the op once more, below autograd and autocast, on operands rebuilt from what the recipe remembers.
//
//   recipe of v1: relu_(v0)      v0 must stay what it is, so an operand that is written gets a copy of v0's bytes (or v0's own block,
//                                when nobody else wants the ghost); the copy becomes v1
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/evict/budget.h"
#include "runtime/evict/now.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

// Whatever the program has switched on at this moment, the kernel runs as it did.
struct AsItRan {
  explicit AsItRan(bool grad_mode) : grad_mode(grad_mode) {}
  Unseen unseen;  // by a recorder below autograd, too: the step has not asked for this
  c10::impl::ExcludeDispatchKeyGuard no_mode{c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::AutocastCPU,
       c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
  at::AutoDispatchBelowADInplaceOrView below;
  c10::AutoGradMode grad_mode;
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
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), argument.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(argument.sizes, argument.strides, argument.offset);
  return tensor;
}

StoragePtr new_storage(std::int64_t bytes) {
  return bare_storage(c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes)), bytes);
}

}  // namespace

StoragePtr bare_storage(c10::DataPtr block, std::int64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
                                               std::move(block), c10::GetCPUAllocator(), /*resizable=*/false);
}

void Budget::recompute(Value& value, int depth) {
  Ref<Recipe> recipe;
  Values operands;
  Values inputs;  // each once
  {
    const std::lock_guard lock(state_);
    TORCH_CHECK_WITH(OutOfMemoryError, depth < kDeepestRecompute && --work_left_ > 0,
                     "stowage: the limit is so short that ", value.name(), " would be recomputed again and again; ",
                     explain(0));
    stats_.deepest_recompute = std::max<std::int64_t>(stats_.deepest_recompute, depth);
    TORCH_CHECK(value.recipe && complete(*value.recipe), "stowage: ", value.name(), " cannot be brought back");
    recipe = value.recipe;
    operands = operands_of(*recipe);
    for (const Ref<Value>& operand : operands) {
      if (operand && std::find(inputs.begin(), inputs.end(), operand) == inputs.end()) inputs.push_back(operand);
    }
  }
  std::vector<StoragePtr> storages;
  Values read;
  torch::jit::Stack stack;
  bool pinned = false;
  const auto clean_up = [&] {
    stack.clear();
    storages.clear();
    const std::lock_guard lock(state_);
    end_reading(read);
    if (pinned) unpin(inputs);
    operands.clear();
    inputs.clear();
    recipe = {};
  };
  try {
    while (storages.empty()) {
      bring(inputs, depth + 1);
      pinned = true;
      storages = storages_for(*recipe, operands, read);
      if (!storages.empty() || recipe->argument_count == 0) break;
      // Another thread has written to one, or is resizing its storage this very moment: it is given its turn, and all
      // are brought again.
      {
        const std::lock_guard lock(state_);
        end_reading(read);
        unpin(inputs);
        pinned = false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    stack = stack_for(*recipe, storages);
    const std::int64_t away = waited_ns();
    const std::int64_t start = now_ns();
    run_recipe(*recipe, stack);
    const std::int64_t took = now_ns() - start - (waited_ns() - away);
    take_results(*recipe, stack, storages, value, took);
  } catch (...) {
    clean_up();
    throw;
  }
  clean_up();
}

// By argument. Once the lock is free, another thread may find that no use is left for the recipe, and empty it.
Budget::Values Budget::operands_of(const Recipe& recipe) {
  Values operands;
  for (std::int32_t i = 0; i < recipe.argument_count; ++i) operands.push_back(recipe.arguments[i].value);
  return operands;
}

// One for each tensor operand; the same for operands that shared theirs. None at all where one cannot be had now.
std::vector<StoragePtr> Budget::storages_for(const Recipe& recipe, const Values& operands, Values& read) {
  std::vector<StoragePtr> storages(operands.size());
  const auto written = [&](const Ref<Value>& value) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (recipe.arguments[i].written && operands[i] == value) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Argument& argument = recipe.arguments[i];
    StoragePtr& storage = storages[i];
    if (argument.kind == Argument::Kind::kShape) {
      storage = bare_storage(c10::DataPtr(nullptr, c10::Device(c10::kCPU)), argument.storage_bytes);
    } else if (argument.kind == Argument::Kind::kValue && argument.overwritten) {
      storage = new_storage(argument.storage_bytes);
    } else if (argument.kind == Argument::Kind::kValue) {
      const auto first =
          static_cast<std::size_t>(std::find(operands.begin(), operands.end(), operands[i]) - operands.begin());
      storage = first < i ? storages[first] : storage_with(*operands[i], written(operands[i]), read);
      if (!storage) return {};
    }
  }
  return storages;
}

// A storage with the value's bytes, of its own where it will be written to; null when another thread is changing the
// value's own. What is read from the program's own storage is noted in `read`, and may not be written to until
// end_reading(). Bytes that are on the host, or in a storage to which no reference can be had (hold()), are copied:
// under the lock they stay.
StoragePtr Budget::storage_with(Value& value, bool to_be_written, Values& read) {
  const void* bytes = nullptr;
  std::int64_t size = 0;
  StoragePtr held;
  {
    const std::lock_guard lock(state_);
    size = value.bytes();
    bytes = value.small_copy.get();  // which stays
    const bool only_ours = value.resident() && value.storage == nullptr && value.own && value.pins() == 1;
    if (to_be_written && only_ours && (value.recipe || value.host != nullptr)) {  // a ghost
      const stowage::eager::How how = value.host != nullptr ? stowage::eager::How::kSwap : stowage::eager::How::kDrop;
      StoragePtr storage = bare_storage(take_block(value), value.bytes());
      table.released(value.id, how);
      return storage;
    }
    if (bytes == nullptr && value.resident())
      held = value.storage != nullptr ? torch_versions::hold(value.storage) : value.own;
    if (held && value.storage != nullptr) state_.let_go_after(held);
    if (held && value_in(held.get()) == &value) {
      ++value.being_read;
      read.emplace_back(&value);
      if (!to_be_written) return held;
      bytes = held->_mutable_data_ptr_no_checks().get();
    }
  }
  StoragePtr copy = new_storage(size);
  void* into = copy->_mutable_data_ptr_no_checks().get();
  if (bytes != nullptr) {
    std::memcpy(into, bytes, static_cast<std::size_t>(size));
    return copy;
  }
  const std::lock_guard lock(state_);
  bytes = bytes_of(value);
  if (bytes == nullptr) return {};
  std::memcpy(into, bytes, static_cast<std::size_t>(size));
  return copy;
}

// Under the lock. A storage whose last owner is taking it apart has no context any more, but its address still, and its
// marked block stays until block_dies() has had the lock.
const void* Budget::bytes_of(Value& value) {
  if (value.small_copy) return value.small_copy.get();
  if (value.residence() == Residence::kSwapped) return value.host;
  if (!value.resident() || value.holder() == nullptr) return nullptr;
  const c10::DataPtr& data = value.holder()->_mutable_data_ptr_no_checks();
  void** mark = block_mark(data.get(), data.get_deleter());
  return mark != nullptr && *mark == &value ? data.get() : nullptr;
}

// Under the lock.
void Budget::end_reading(Values& read) {
  for (const Ref<Value>& value : read) --value->being_read;
  read.clear();
}

torch::jit::Stack Budget::stack_for(const Recipe& recipe, const std::vector<StoragePtr>& storages) {
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

void Budget::run_recipe(const Recipe& recipe, torch::jit::Stack& stack) {
  const AsItRan as_it_ran(recipe.grad_mode);
  const Rewind rewind(options_.replay_generator ? recipe.generator.get() : nullptr);
  recipe.handle.callBoxed(&stack);
}

// The blocks that the op has filled become those of the value wanted, and of its other results that are dropped.
void Budget::take_results(Recipe& recipe, const torch::jit::Stack& stack, const std::vector<StoragePtr>& storages,
                          Value& wanted, std::int64_t took_ns) {
  c10::SmallVector<const at::Tensor*, 4> tensors;
  collect_results(*recipe.op, stack, tensors);
  const std::lock_guard lock(state_);
  ++stats_.recomputed_ops;
  stats_.recompute_ns += took_ns;
  for (const Recipe::Result& result : recipe.results) {
    Value* value = result.value;
    if (value == nullptr || value->recipe.get() != &recipe) continue;
    bury_if_dead(*value);
    if (value != &wanted && value->residence() != Residence::kDropped) continue;
    if (value->resident()) continue;
    c10::StorageImpl* storage = result.position >= 0 ? storage_of(*tensors[static_cast<std::size_t>(result.position)])
                                                     : storages[static_cast<std::size_t>(-1 - result.position)].get();
    c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    void** mark = block_mark(data.get_context(), data.get_deleter());
    TORCH_CHECK(mark != nullptr && *mark == nullptr && static_cast<std::int64_t>(storage->nbytes()) == value->bytes(),
                "stowage: ", value->name(), " came out differently when it was made again");
    c10::DataPtr block = std::move(data);
    data = c10::DataPtr();
    if (put(*value, block)) {
      table.restored(value->id, stowage::eager::How::kDrop, value == &wanted ? took_ns : 0);
    } else if (value == &wanted) {
      keep_on_host(wanted, block.get());
    } else {
      continue;
    }
    record(Event::Kind::kRecompute, value->bytes(), recipe.op);
  }
  TORCH_CHECK(wanted.resident() || wanted.residence() == Residence::kSwapped, "stowage: ", wanted.name(),
              " could not be made again");
}

// What was made again, and cannot be put into its storage.
void Budget::keep_on_host(Value& value, const void* data) {
  TORCH_CHECK_WITH(OutOfMemoryError, copy_out(value, data), "stowage: the host store is full, and ", value.name(),
                   " is needed there");
  table.restored(value.id, stowage::eager::How::kDrop, 0);
  table.released(value.id, stowage::eager::How::kSwap);
}

}  // namespace stowage::runtime::evict
