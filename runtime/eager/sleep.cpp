// A limit that is far away costs nothing: once whole steps have stayed below 55 % of it, the hook is taken off the thread, and only
// the allocator goes on counting. It wakes the budget when live bytes pass 65 % of the limit.
//
//   limit  ────────────────────────────────────────────────
//   65 %   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ▲ awake: ops are seen again, tensors are known when they are next used
//   55 %   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─╱
//          ╱╲__╱╲__   asleep   ╱╲__╱╲__╱
//
// What was made meanwhile has no recipe, and stays until something touches it: at most 65 % of the limit.
#include <c10/core/InferenceMode.h>

#include "runtime/eager/budget.h"

namespace stowage::runtime::eager {

// After an optimizer's step, under the lock.
void Budget::sleep_if_far() {
  if (asleep_ || !at_home() || intercepting() || ++updates_seen_ < 2) return;  // a recorder needs the hook
  const bool far = peak_bytes() <= options_.limit_bytes / 100 * 55;
  const bool all_there = fetching_.empty() && leaving_.empty() && stats_.drops + stats_.swaps_out == 0;
  if (!far || !all_there || running_ != nullptr) return;
  release_all(/*known_outside=*/false);
  asleep_ = true;
  set_limit(waking_bytes());
  attach_thread(false);
}

// The allocation that wakes it is made by an op that nobody watches, so what that op uses is not pinned. As long as it is unknown it
// cannot leave; so what the op calls inside, recognized by autograd having been taken off, goes unwatched too.
void Budget::wake() {
  settling_ = true;
  asleep_ = false;
  updates_seen_ = 0;
  set_limit(current_limit_);
  if (at_home()) attach_thread(true);
}

bool Budget::inside_unwatched_op() {
  if (!settling_ || !at_home()) return false;
  settling_ = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU) && !c10::InferenceMode::is_enabled();
  return settling_;
}

}  // namespace stowage::runtime::eager
