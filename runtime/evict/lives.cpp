// The lives of values, first half: met at a storage, and taken off it when its content changes.
#include <ATen/core/Tensor.h>

#include "runtime/evict/block.h"
#include "runtime/evict/graph.h"
#include "runtime/memory/allocator.h"

namespace stowage::runtime::evict {
namespace {

constexpr std::int16_t kDeepestInPlace = 16;  // then the content counts as given
constexpr int kDeepestGhost = 32;

}  // namespace

Value* Graph::meet(const at::Tensor& tensor, const OpTraits* origin, bool made) {
  c10::StorageImpl* storage = storage_of(tensor);
  void** mark = mark_in(*storage);
  if (mark == nullptr && state_.device.adopt(*storage)) mark = mark_in(*storage);
  if (mark == nullptr || storage->nbytes() == 0) return nullptr;
  state_.device.used_here(*storage);
  Ref<Value> value(new Value(*this, state_));
  value->moves_into(storage);
  value->owner = block_owner(storage->_mutable_data_ptr_no_checks().get_context(),
                             storage->_mutable_data_ptr_no_checks().get_deleter());
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
    const bool later = evictable && !made && awake_.holds_back();
    note_row(*value, bytes, evictable && !later);
    if (later) awake_.hold_back(*value);
    if (!value->known_outside) watch(*storage);
  }
  Value* known = value.release();
  *mark = known;
  return known;
}

void Graph::note_row(Value& value, std::int64_t bytes, bool evictable) {
  // Once there is an id, nothing may fail
  if (state_.by_row.size() <= state_.table.rows()) state_.by_row.resize(2 * state_.table.rows() + 64);
  value.id = state_.table.created(bytes, evictable);
  state_.by_row[value.id] = &value;
}

void Graph::take_off(Value& value, bool recipe_follows) {
  const c10::DataPtr& data = value.storage->_mutable_data_ptr_no_checks();
  if (value.in_place_depth >= kDeepestInPlace) lose_recipe(value);
  const bool kept = must_be_kept(value);
  if (kept && !copies_.copy_out(value, data.get())) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "stowage: the host store is full, and ", value.name(),
                     " is needed there");
  }
  // For a recipe to come only where a copy is no launch
  if (value.small() && (value.readers != nullptr || (recipe_follows && state_.on_host()))) value.keep_small(data.get());
  const Ref<Value> self = Ref<Value>::adopt(&value);  // the storage's reference
  *mark_in(*value.storage) = nullptr;
  value.moves_out();
  if (value.small()) return;
  if (!kept) return give_up(value);
  ++state_.stats.snapshots;
  state_.table.released(value.id, How::kSwap);
}

// A value's storage is going or moving on, and something dropped can only be made from these bytes.
bool Graph::must_be_kept(Value& value) {
  if (value.small()) return false;
  if (value.recipe) {
    value.ghost_depth = ghost_depth(*value.recipe);
    if (value.ghost_depth > kDeepestGhost && !needed(value)) lose_recipe(value);
  }
  return !value.recipe && needed(value);
}

// Its bytes go; if it has no recipe, nothing can be made from it any more.
void Graph::give_up(Value& value) {
  if (value.residence() == Residence::kFetching) copies_.cancel_in(value);
  copies_.drop(value);
  if (!value.recipe) forget_readers(value);
  state_.table.died(value.id);
}

// What the storage of `past` holds from now on.
Ref<Value> Graph::successor(const Value& past, c10::StorageImpl* storage) {
  Ref<Value> value(new Value(*this, state_));
  value->moves_into(storage);
  value->owner = past.owner;
  value->origin = past.origin;
  value->made = past.made;
  return value;
}

void Graph::known_outside(c10::StorageImpl* storage) {
  Value* value = value_in(storage);
  if (value == nullptr || value->known_outside || !value->resident()) return;
  const Ref<Value> past(value);
  take_off(*value);
  Ref<Value> now = successor(*past, storage);
  now->known_outside = true;
  now->small_bytes = past->small_bytes;
  if (!past->small()) note_row(*now, past->bytes(), /*evictable=*/false);
  *mark_in(*storage) = now.release();
}

void Graph::hold_on_host(c10::StorageImpl& storage, Value& now, void* host) {
  const Ref<Value> past = Ref<Value>::adopt(&now);  // the context's reference
  now.moves_out();
  give_up(now);
  Ref<Value> value = successor(*past, &storage);
  note_row(*value, past->bytes(), /*evictable=*/true);
  value->host = host;
  state_.table.released(value->id, How::kSwap);
  storage._mutable_data_ptr_no_checks().release_context();
  stand_for(storage, std::move(value));
}

}  // namespace stowage::runtime::evict
