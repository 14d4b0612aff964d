// A limit that is far away costs nothing: once whole steps have stayed below 55 % of it, the hook is taken off the
// thread, and only the allocator goes on counting. It wakes the budget when live bytes pass 65 % of the limit.
//
//   limit  ────────────────────────────────────────────────
//   65 %   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ▲ awake: ops are seen again, tensors are known when they are next used
//   55 %   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─╱
//          ╱╲__╱╲__   asleep   ╱╲__╱╲__╱
//
// What was made meanwhile has no recipe, and stays until something touches it: at most 65 % of the limit. Each time
// that it is woken it takes twice as many quiet updates to sleep again.
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "runtime/evict/budget.h"

namespace stowage::runtime::evict {

// After an optimizer's step, under the lock: whole steps, one after the other, have stayed far from the limit.
bool Budget::may_sleep() {
  // A recorder needs the hook, and so do other threads
  if (asleep_ || others_ || !at_home() || intercepting()) return false;
  // What is made without a recipe could never leave
  if (options_.release == stowage::eager::Release::kDropOnly) return false;
  stats_.peak_bytes = std::max(stats_.peak_bytes, peak_bytes());
  const bool far = peak_bytes() <= options_.limit_bytes / 100 * 55;
  reset_peak();  // of the next step
  quiet_updates_ = far ? quiet_updates_ + 1 : 0;
  return quiet_updates_ >= quiet_enough_ && running_ == nullptr;
}

// What is away must be back before: nobody would bring it. It stays awake where that does not fit.
void Budget::sleep() {
  const std::lock_guard one_at_a_time(restoring_);
  std::int64_t away_bytes = 0;
  {
    const std::lock_guard lock(state_);
    for (const Value* value : values()) away_bytes += value->storage != nullptr && !there(*value) ? value->bytes() : 0;
  }
  if (live_bytes() + away_bytes > options_.limit_bytes / 100 * 55 || !bring_all_back().empty()) return;
  const std::lock_guard lock(state_);
  const bool all_there = table.coming_in().empty() &&
                         std::all_of(values().begin(), values().end(),
                                     [](const Value* value) { return value->storage == nullptr || there(*value); });
  if (!all_there || running_ != nullptr || others_) return;
  release_all(/*known_outside=*/false);
  asleep_ = true;
  set_limit(waking_bytes());
  attach_thread(false);
}

// The allocation that wakes it is made by an op that nobody watches, so what that op uses is not pinned. As long as it
// is unknown it cannot leave; so what the op calls inside, recognized by autograd having been taken off, goes unwatched
// too. Where another thread wakes it, home goes on unwatched until it comes by: what others meet meanwhile may be in
// use there, and is held back.
void Budget::wake() {
  asleep_ = false;
  quiet_updates_ = 0;
  quiet_enough_ = std::min(2 * quiet_enough_, kMostQuietUpdates);
  set_limit(current_limit_);
  if (at_home()) {
    settling_ = true;
    attach_thread(true);
  } else {
    home_away_ = true;
  }
}

// Home comes by: between two ops, or (`inside_op`) making room for one that nobody watches.
void Budget::home_is_back(bool inside_op) {
  home_away_ = false;
  settling_ = inside_op;
  attach_thread(true);
  if (!inside_op) return end_holding_back();
  for (Value* value : values()) {
    if (value->small() || value->pins() > 0 || !table[value->id].evictable) continue;
    table.never_evict(value->id);
    held_back_.emplace_back(value);
  }
}

void Budget::end_holding_back() {
  for (const Ref<Value>& value : held_back_) {
    if (value->storage != nullptr && !value->small() && !value->known_outside) table.may_evict(value->id);
  }
  held_back_.clear();
}

bool Budget::inside_unwatched_op() {
  if (!settling_ || !at_home()) return false;
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU) && !c10::InferenceMode::is_enabled())
    return true;
  const std::lock_guard lock(state_);
  settling_ = false;
  end_holding_back();
  return false;
}

}  // namespace stowage::runtime::evict
