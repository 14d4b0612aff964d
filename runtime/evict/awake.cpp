#include "runtime/evict/awake.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "runtime/evict/interlude.h"
#include "runtime/memory/allocator.h"
#include "runtime/torch/hook.h"

namespace stowage::runtime::evict {

void Awake::enters() { settling_ = others_ = home_away_ = false; }

void Awake::fall_asleep() {
  asleep_ = true;
  state_.set_limit(waking_bytes());
  attach_thread(false);
}

void Awake::wake() {
  asleep_ = false;
  quiet_updates_ = 0;
  quiet_enough_ = std::min(2 * quiet_enough_, kMostQuietUpdates);
  state_.set_limit(state_.limit_bytes);
  if (state_.at_home()) {
    settling_ = true;
    attach_thread(true);
  } else {
    home_away_ = true;
  }
}

thread_local bool Awake::tl_expected_ = false;

void Awake::attach_this_thread() {
  tl_expected_ = false;
  {
    const std::lock_guard lock(state_.lock);
    if (!state_.at_home()) {
      others_ = true;
      if (asleep_) wake();
    }
  }
  attach_thread(true);
}

void Awake::expect_this_thread() {
  tl_expected_ = true;
  attach_thread(true);
}

void Awake::after_fork() {
  others_ = home_away_ = settling_ = false;
  end_holding_back();
}

void Awake::home_comes_by(bool inside_op) {
  if (!home_away_ || !state_.at_home()) return;
  home_away_ = false;
  settling_ = inside_op;
  attach_thread(true);
  if (!inside_op) return end_holding_back();
  for (Value* value : state_.values) {
    if (value->small() || value->pins() > 0 || !state_.table[value->id].evictable) continue;
    state_.table.never_evict(value->id);
    hold_back(*value);
  }
}

void Awake::end_holding_back() {
  for (const Ref<Value>& value : held_back_) {
    if (value->storage != nullptr && !value->small() && !value->known_outside) state_.table.may_evict(value->id);
  }
  held_back_.clear();
}

bool Awake::inside_unwatched_op() {
  if (!settling_ || !state_.at_home()) return false;
  if (Interlude::under_way()) return true;
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU) && !c10::InferenceMode::is_enabled())
    return true;
  const std::lock_guard lock(state_.lock);
  settling_ = false;
  end_holding_back();
  return false;
}

bool Awake::quiet_enough(bool far_from_limit) {
  quiet_updates_ = far_from_limit ? quiet_updates_ + 1 : 0;
  return quiet_updates_ >= quiet_enough_;
}

}  // namespace stowage::runtime::evict
