// The lives of values: met at a storage, left by it, given up.
//
//   meet ──► resident ──► let go / brought back ──► its storage dies or is written to
//                                                     │ has a recipe: a ghost; gone when nobody reads it
//                                                     │ none, and something dropped needs it: its bytes are kept, or go to the host
//                                                     └ none: what was made from it has no recipe any more
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "runtime/evict/budget.h"

namespace stowage::runtime::evict {

// Where the value is noted: in the block, or in the context that stands for an evicted one.
Value* Budget::value_in(c10::StorageImpl* storage) const {
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (data.get_deleter() == evicted_deleter()) return static_cast<Value*>(data.get_context());
  void** mark = block_mark(data.get_context(), data.get_deleter());
  return mark == nullptr ? nullptr : static_cast<Value*>(*mark);
}

Value* Budget::meet(const at::Tensor& tensor, const OpTraits* origin, bool made) {
  c10::StorageImpl* storage = storage_of(tensor);
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  void** mark = block_mark(data.get_context(), data.get_deleter());
  if (mark == nullptr || storage->nbytes() == 0) return nullptr;
  Ref<Value> value(new Value(*this));
  value->moves_into(storage);
  value->origin = origin;
  value->made = made;
  // So numpy() leaves it: an array looks into it, made before the block perhaps
  value->known_outside = !storage->resizable();
  const auto bytes = static_cast<std::int64_t>(storage->nbytes());
  if (bytes < kSmallBytes) {
    value->small_bytes = bytes;
  } else {
    const bool looked_at =
        bytes <= kSmallNumbersBytes && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    const bool evictable = !looked_at && !value->known_outside;
    const bool later = evictable && !made && (home_away_ || settling_);
    note_row(*value, bytes, evictable && !later);
    if (later) held_back_.push_back(value);
    if (!value->known_outside) watch(*storage);
  }
  Value* known = value.release();
  *mark = known;
  return known;
}

void Budget::note_row(Value& value, std::int64_t bytes, bool evictable) {
  // Once there is an id, nothing may fail
  if (rows_.size() <= table.rows()) rows_.resize(2 * table.rows() + 64);
  value.id = table.created(bytes, evictable);
  rows_[value.id] = &value;
}

// Takes the value off its storage, whose content is about to change; its bytes are still there. Throws before anything
// has changed.
void Budget::take_off(Value& value) {
  const c10::DataPtr& data = value.storage->_mutable_data_ptr_no_checks();
  if (value.in_place_depth >= kDeepestInPlace) lose_recipe(value);
  const bool kept = must_be_kept(value);
  if (kept && !copy_out(value, data.get())) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "stowage: the host store is full, and ", value.name(),
                     " is needed there");
  }
  if (value.small()) keep_small(value, data.get());
  const Ref<Value> self = Ref<Value>::adopt(&value);  // the storage's reference
  *block_mark(data.get_context(), data.get_deleter()) = nullptr;
  value.moves_out();
  if (value.small()) return;
  if (!kept) return give_up(value);
  ++stats_.snapshots;
  table.released(value.id, stowage::eager::How::kSwap);
}

// A value's storage is going or moving on, and something dropped can only be made from these bytes.
bool Budget::must_be_kept(Value& value) {
  if (value.small()) return false;
  if (value.recipe) {
    value.ghost_depth = static_cast<std::int16_t>(ghost_depth(*value.recipe) + 1);
    if (value.ghost_depth > kDeepestGhost && !needed(value)) lose_recipe(value);
  }
  return !value.recipe && needed(value);
}

// Its bytes go; if it has no recipe, nothing can be made from it any more.
void Budget::give_up(Value& value) {
  if (value.residence() == Residence::kFetching) cancel_fetch(value);
  drop_host_copy(value);
  if (!value.recipe) forget_readers(value);
  table.died(value.id);
}

int Budget::ghost_depth(const Recipe& recipe) {
  int depth = 0;
  for (std::int32_t i = 0; i < recipe.argument_count; ++i) {
    const Value* value = recipe.arguments[i].value.get();
    if (value != nullptr && value->residence() == Residence::kGone) depth = std::max<int>(depth, value->ghost_depth);
  }
  return depth;
}

void Budget::keep_small(Value& value, const void* data) {
  if (value.readers == nullptr || data == nullptr) return;
  value.small_copy = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(value.bytes()));
  std::memcpy(value.small_copy.get(), data, static_cast<std::size_t>(value.bytes()));
}

void Budget::value_dies(Value& value) {
  if (value.residence() == Residence::kFetching) cancel_fetch(value);
  drop_host_copy(value);
  if (value.own) take_block(value);
  if (value.small()) return;
  rows_[value.id] = nullptr;
  table.forgotten(value.id);
}

void Budget::recipe_lost(Value& value) {
  ++stats_.lost_recipes;
  if (!value.small()) table.lost_recipe(value.id);
}

bool Budget::block_dies(void* data, void*) noexcept {
  const std::lock_guard lock(state_);
  void (*deleter)(void*) = c10::GetCPUAllocator()->raw_deleter();
  void* mark = *block_mark(data, deleter);  // while it waited for the lock, the value may have parted
  if (mark == nullptr) return false;
  const Ref<Value> value = Ref<Value>::adopt(static_cast<Value*>(mark));
  if (!undo_.empty()) forget_undo(value->storage);
  *block_mark(data, deleter) = nullptr;
  value->moves_out();
  if (value->small()) {
    keep_small(*value, data);
    return false;
  }
  if (!must_be_kept(*value)) {
    give_up(*value);
    return false;
  }
  // They stay, without a storage of the program's.
  *block_mark(data, deleter) = value.get();
  value->own = bare_storage(c10::DataPtr(data, data, deleter, c10::Device(c10::kCPU)), value->bytes());
  return true;
}

void Budget::evicted_storage_dies(Value* mark) noexcept {
  const std::lock_guard lock(state_);
  const Ref<Value> value = Ref<Value>::adopt(mark);
  content_dies_away(value->storage != nullptr ? value->storage : value->died_in);
  if (value->storage != nullptr) return storage_died(*value);
  if (--untold_ == 0) told_.notify_all();
}

// An evicted one.
void Budget::storage_died(Value& value) {
  if (!undo_.empty()) forget_undo(value.storage);
  value.moves_out();
  if (value.residence() == Residence::kFetching) cancel_fetch(value);
  if (value.residence() == Residence::kSwapped && !value.recipe && needed(value)) return;  // it waits on the host
  if (value.recipe) value.ghost_depth = static_cast<std::int16_t>(ghost_depth(*value.recipe) + 1);
  give_up(value);
}

// An evicted storage that nobody has any more is taken apart by its last owner without a lock, and nothing may be put
// into it. Its value parts from it now; the context keeps its reference until the owner's thread has its turn
// (evicted_storage_dies()).
void Budget::bury_if_dead(Value& value) {
  if (value.storage == nullptr || value.resident() || c10::raw::weak_intrusive_ptr::use_count(value.storage) > 0)
    return;
  value.died_in = value.storage;
  ++untold_;
  storage_died(value);
}

}  // namespace stowage::runtime::evict
