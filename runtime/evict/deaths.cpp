// The lives of values, second half: storages die, in any thread, and the budget ends.
//
//   a resident storage dies    its block's deleter asks block_dies(): free it, or keep it for what is dropped
//   an evicted one dies        its context's deleter says so: evicted_storage_dies(). Whoever finds it dead before that
//                              buries its value, and the deleter finds nothing left to do but to be counted
#include "runtime/evict/block.h"
#include "runtime/evict/graph.h"
#include "runtime/memory/allocator.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {

bool Graph::block_dies(void* data) noexcept {
  const std::lock_guard lock(state_.lock);
  void (*deleter)(void*) = state_.device.allocator().raw_deleter();
  void* mark = *block_mark(data, deleter);  // while it waited for the lock, the value may have parted
  if (mark == nullptr) return false;
  const Ref<Value> value = Ref<Value>::adopt(static_cast<Value*>(mark));
  undo_.forget(value->storage);
  *block_mark(data, deleter) = nullptr;
  value->moves_out();
  if (value->small()) {
    if (value->readers == nullptr) return false;
    if (state_.on_host()) {
      value->keep_small(data);
      return false;
    }
    value->small_copy = c10::DataPtr(data, data, deleter, state_.options.where);  // no kernel runs here
    return true;
  }
  if (!must_be_kept(*value)) {
    give_up(*value);
    return false;
  }
  *block_mark(data, deleter) = value.get();
  value->own = bare_storage(c10::DataPtr(data, data, deleter, state_.options.where), value->bytes());
  return true;
}

void Graph::evicted_storage_dies(Value* mark) noexcept {
  const std::lock_guard lock(state_.lock);
  const Ref<Value> value = Ref<Value>::adopt(mark);
  content_dies_away(value->storage != nullptr ? value->storage : value->died_in);
  if (value->storage != nullptr) return storage_died(*value);
  if (--untold_ == 0) told_.notify_all();
}

void Graph::bury_if_dead(Value& value) {
  if (value.storage == nullptr || value.resident() || c10::raw::weak_intrusive_ptr::use_count(value.storage) > 0)
    return;
  value.died_in = value.storage;
  ++untold_;
  storage_died(value);
}

// An evicted one.
void Graph::storage_died(Value& value) {
  undo_.forget(value.storage);
  value.moves_out();
  if (value.residence() == Residence::kFetching) copies_.cancel_in(value);
  if (value.residence() == Residence::kSwapped && !value.recipe && needed(value)) return;  // it waits on the host
  if (value.recipe) value.ghost_depth = ghost_depth(*value.recipe);
  give_up(value);
}

void Graph::wait_for_burials(std::unique_lock<StateLock>& lock) {
  told_.wait(lock, [this] { return untold_ == 0; });
}

void Graph::value_dies(Value& value) {
  if (value.residence() == Residence::kFetching) copies_.cancel_in(value);
  copies_.drop(value);
  if (value.own) take_block(value);
  if (value.small()) return;
  state_.by_row[value.id] = nullptr;
  state_.table.forgotten(value.id);
}

void Graph::release_all(bool known_outside_too) {
  undo_.forget_all();
  awake_.forget_held_back();
  while (!state_.table.going_out().empty()) copies_.finish_out(state_.at(state_.table.going_out().back()));
  std::vector<Ref<Value>> all;
  for (Value* value : state_.values) {
    if (known_outside_too || !value->known_outside) all.emplace_back(value);
  }
  for (const Ref<Value>& value : all) {
    lose_recipe(*value);
    if (value->storage != nullptr) part(*value);
  }
}

// The value and its storage.
void Graph::part(Value& value) {
  c10::StorageImpl* storage = value.storage;
  const StoragePtr held = torch_versions::hold(storage);
  if (held) state_.lock.let_go_after(held);
  if (!held && !value.resident()) return bury_if_dead(value);
  if (value_in(storage) != &value) return;            // it is dying in another thread, which parts them
  const Ref<Value> self = Ref<Value>::adopt(&value);  // the storage's reference
  if (value.resident()) {
    *mark_in(*storage) = nullptr;
    unwatch(*storage);
  } else {
    storage->_mutable_data_ptr_no_checks().release_context();
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, state_.options.where));
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_("stowage: " + value.name() +
                                                                  " was lost when its budget ended");
  }
  value.moves_out();
}

void Graph::leave_at_home(Value& value) {
  const StoragePtr held = torch_versions::hold(value.storage);
  if (!held) return;
  state_.lock.let_go_after(held);
  c10::DataPtr memory = copies_.hand_over(value);
  if (!memory) return;
  const Ref<Value> self = Ref<Value>::adopt(&value);  // the storage's reference
  lose_recipe(value);
  torch_versions::allow_reads(*held);
  held->_mutable_data_ptr_no_checks().release_context();
  content_returns(held.get(), memory.get());
  held->set_data_ptr_noswap(std::move(memory));
  value.moves_out();
  give_up(value);
}

void Graph::after_fork() {
  new (&told_) std::condition_variable_any;  // the threads that waited are not there
  untold_ = 0;
}

}  // namespace stowage::runtime::evict
