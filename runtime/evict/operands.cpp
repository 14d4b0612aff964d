// The operands of a recipe that runs again: storages with the bytes that they had.
//
//   read       the program's own storage, which nobody writes to meanwhile: being_read
//   written    a copy, or the ghost's own block when nobody else wants it
//   neither    a storage without bytes (only its shape counts), or with any (the op overwrites them all)
#include <algorithm>

#include "runtime/evict/block.h"
#include "runtime/evict/recompute.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {

// One for each tensor operand; the same for operands that shared theirs. None at all where one cannot be had now.
std::vector<StoragePtr> Recompute::storages_for(const Recipe& recipe, const Values& operands, Values& read) {
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
      storage = bare_storage(c10::DataPtr(nullptr, budget_device()), argument.storage_bytes);
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
StoragePtr Recompute::storage_with(Value& value, bool to_be_written, Values& read) {
  const void* bytes = nullptr;
  std::int64_t size = 0;
  StoragePtr held;
  {
    const std::lock_guard lock(state_.lock);
    size = value.bytes();
    bytes = value.small_copy.get();  // which stays
    const bool only_ours = value.resident() && value.storage == nullptr && value.own && value.pins() == 1;
    if (to_be_written && only_ours && (value.recipe || value.host != nullptr)) {  // a ghost
      StoragePtr storage = bare_storage(take_block(value), size);
      state_.table.released(value.id, value.host != nullptr ? How::kSwap : How::kDrop);
      return storage;
    }
    if (bytes == nullptr && value.resident())
      held = value.storage != nullptr ? torch_versions::hold(value.storage) : value.own;
    if (held && value.storage != nullptr) state_.lock.let_go_after(held);
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
    state_.device.copy(into, bytes, size);
    return copy;
  }
  const std::lock_guard lock(state_.lock);
  if (copy_bytes(value, into)) return copy;
  TORCH_CHECK(!value.small() || value.storage != nullptr, "stowage: ", value.name(),
              " was let go, and is needed again");
  return {};
}

// Under the lock.
void Recompute::end_reading(Values& read) {
  for (const Ref<Value>& value : read) --value->being_read;
  read.clear();
}

}  // namespace stowage::runtime::evict
