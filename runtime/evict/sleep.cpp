#include "runtime/evict/sleep.h"

#include <algorithm>

#include "runtime/torch/hook.h"

namespace stowage::runtime::evict {

bool Sleep::is_due() {
  // A recorder needs the hook, and so do other threads
  if (awake_.asleep() || awake_.others() || !state_.at_home() || intercepting()) return false;
  // What is made without a recipe could never leave
  if (!state_.table.may_swap()) return false;
  state_.stats.peak_bytes = std::max(state_.stats.peak_bytes, state_.peak_bytes());
  const bool far = state_.peak_bytes() <= falling_bytes();
  state_.reset_peak();  // of the next step
  return awake_.quiet_enough(far) && state_.running == nullptr;
}

void Sleep::fall() {
  const std::lock_guard one_at_a_time(state_.restoring);
  std::int64_t away_bytes = 0;
  {
    const std::lock_guard lock(state_.lock);
    for (const Value* value : state_.values) {
      if (value->storage != nullptr && !value->there()) away_bytes += value->bytes();
    }
  }
  if (state_.live_bytes() + away_bytes > falling_bytes() || !restorer_.bring_all_back(AllBack::kHolds).empty()) return;
  const std::lock_guard lock(state_.lock);
  const bool all_there = state_.table.coming_in().empty() &&
                         std::all_of(state_.values.begin(), state_.values.end(),
                                     [](const Value* v) { return v->storage == nullptr || v->there(); });
  if (!all_there || state_.running != nullptr || awake_.others()) return;
  graph_.release_all(/*known_outside_too=*/false);
  awake_.fall_asleep();
}

}  // namespace stowage::runtime::evict
