#include "runtime/evict/room.h"

#include <optional>

#include "runtime/evict/block.h"
#include "runtime/evict/running.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

thread_local std::int64_t tl_waited_ns = 0;

struct CountWait {
  std::int64_t start = now_ns();
  ~CountWait() { tl_waited_ns += now_ns() - start; }
};

}  // namespace

std::int64_t waited_ns() { return tl_waited_ns; }
void set_waited_ns(std::int64_t ns) { tl_waited_ns = ns; }

void Room::make_room(std::int64_t bytes) {
  const CountWait count;
  const PauseWatching beside_the_op;
  const owners::Unasked ours;
  const std::lock_guard lock(state_.lock);
  if (awake_.asleep()) return awake_.wake();
  awake_.home_comes_by(/*inside_op=*/true);
  const std::int64_t start = now_ns();
  pin_running(state_);
  state_.device.count_others();
  if (state_.options.soft) state_.set_limit(state_.limit_bytes);
  while (state_.live_bytes() + bytes > state_.limit_bytes) {
    if (let_go_of_one()) continue;
    if (state_.options.soft) {
      state_.set_limit(state_.live_bytes() + bytes);
      break;
    }
    ++state_.stats.out_of_memory;
    state_.stats.short_bytes = std::max(state_.stats.short_bytes, state_.live_bytes() + bytes - state_.limit_bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, explain(bytes));
  }
  state_.stats.evict_ns += now_ns() - start;
}

bool Room::spare(std::int64_t bytes) {
  const CountWait count;
  const PauseWatching beside_the_op;
  const owners::Unasked ours;
  const std::lock_guard lock(state_.lock);
  if (awake_.asleep()) return false;
  pin_running(state_);
  const std::int64_t before = state_.live_bytes();
  while (before - state_.live_bytes() < bytes && let_go_of_one()) {
  }
  return state_.live_bytes() < before;
}

void Room::shrink() {
  while (state_.live_bytes() > state_.limit_bytes) {
    if (let_go_of_one()) continue;
    if (state_.options.soft) return state_.set_limit(state_.live_bytes());
    state_.stats.short_bytes = state_.live_bytes() - state_.limit_bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, explain(0));
  }
}

// Ghosts first: bytes that no storage of the program holds were made only on the way to something else. At last what is
// on its way in.
bool Room::let_go_of_one() {
  stowage::eager::ValueTable& table = state_.table;
  for (const ValueId ghost : table.ghosts()) {
    if (table.free_to_go(ghost, /*last_resort=*/false)) return let_go(state_.at(ghost), How::kDrop);
  }
  while (const std::optional<stowage::eager::Victim> victim = state_.keeper.victim()) {
    if (let_go(state_.at(victim->value), victim->how)) return true;
  }
  if (table.coming_in().empty()) return false;
  copies_.cancel_in(state_.at(table.coming_in().back()));
  return true;
}

bool Room::let_go(Value& value, How how) {
  const Ref<Value> self(&value);
  // Another thread may be letting go of it right now; if it does so meanwhile, ours is the last reference, which ends
  // after the lock.
  const StoragePtr storage = value.storage != nullptr ? torch_versions::hold(value.storage) : value.own;
  if (value.storage != nullptr && storage) state_.lock.let_go_after(storage);
  const bool as_known =
      storage && static_cast<std::int64_t>(storage->nbytes()) == value.bytes() && value_in(storage.get()) == &value;
  if (!as_known) {  // dying, or resized behind our back
    state_.table.never_evict(value.id);
    return false;
  }
  if (value.host != nullptr || (how == How::kDrop && !value.recipe)) how = How::kSwap;
  if (how == How::kSwap && !copies_.copy_out(value, storage->_mutable_data_ptr_no_checks().get())) {
    if (!state_.table.may_drop(value.id)) {
      state_.table.never_evict(value.id);
      return false;
    }
    how = How::kDrop;
  }
  const bool swap = how == How::kSwap;
  const c10::DataPtr block = take_block(value);
  state_.table.released(value.id, how);
  ++(swap ? state_.stats.swaps_out : state_.stats.drops);
  state_.record(swap ? Event::Kind::kSwapOut : Event::Kind::kDrop, value.bytes(), value.origin);
  if (state_.options.poison) state_.device.fill(block.get(), 0xAB, value.bytes());
  return true;
}

}  // namespace stowage::runtime::evict
