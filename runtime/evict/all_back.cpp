// Bringing back all that is away: the budget ends, or sleeps. One after the other, so that what fails is named after all
// the rest is back. Or leaving it where it waits.
#include <string>

#include "runtime/evict/block.h"
#include "runtime/evict/restorer.h"
#include "runtime/evict/running.h"
#include "runtime/memory/what.h"

namespace stowage::runtime::evict {

std::vector<StoragePtr> Restorer::hold_storages_away() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> away;
  {
    const std::lock_guard lock(state_.lock);
    for (const Value* value : state_.values) {
      if (value->storage == nullptr || value->there()) continue;
      c10::raw::weak_intrusive_ptr::incref(value->storage);
      away.push_back(c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(value->storage));
    }
  }
  std::vector<StoragePtr> held;
  for (const c10::weak_intrusive_ptr<c10::StorageImpl>& storage : away) held.push_back(storage.lock());
  return held;
}

// First all of them get a copy in the file, made again where they were dropped; then none needs another any more.
void Restorer::leave_at_home(const std::unordered_set<const c10::StorageImpl*>& which) {
  const std::vector<StoragePtr> held = hold_storages_away();
  const owners::Unasked ours;
  const std::lock_guard one_at_a_time(state_.restoring);
  Values leaving;
  std::int64_t away_bytes = 0;
  {
    const std::lock_guard lock(state_.lock);
    while (!state_.table.coming_in().empty()) copies_.cancel_in(state_.at(state_.table.coming_in().back()));
    for (Value* value : state_.values) {
      if (value->storage == nullptr) continue;
      if (!value->there()) away_bytes += value->bytes();
      if (which.contains(value->storage) && value->bytes() >= kSmallestHomeBytes && !value->known_outside)
        leaving.push_back(Ref<Value>(value));
    }
    if (state_.live_bytes() + away_bytes <= state_.limit_bytes) return;
  }
  Values one;
  for (const Ref<Value>& value : leaving) {
    bool dropped = false;
    {
      const std::lock_guard lock(state_.lock);
      graph_.bury_if_dead(*value);
      dropped = value->storage != nullptr && value->residence() == Residence::kDropped;
    }
    one.assign(1, value);
    try {
      if (dropped) bring(one, 0);
    } catch (const std::exception&) {  // bring_all_back() will try without a limit, and say what it was
      return;
    }
    if (!dropped) continue;
    const std::lock_guard lock(state_.lock);
    unpin(state_, one);
    if (value->resident() && value->pins() == 0) room_.let_go(*value, How::kSwap);
  }
  one.clear();
  const std::lock_guard lock(state_.lock);
  for (const Ref<Value>& value : leaving) {
    graph_.bury_if_dead(*value);
    if (value->storage != nullptr && value->resident() && value->pins() == 0) room_.let_go(*value, How::kSwap);
    if (value->storage != nullptr && value->residence() == Residence::kSwapped) graph_.leave_at_home(*value);
  }
  leaving.clear();
}

std::string Restorer::bring_all_back() {
  const owners::Unasked ours;
  std::string failure;  // the first
  std::int64_t failed = 0;
  Values away;
  {
    const std::lock_guard lock(state_.lock);
    while (!state_.table.coming_in().empty()) copies_.cancel_in(state_.at(state_.table.coming_in().back()));
    for (Value* value : state_.values) {
      if (value->storage != nullptr && !value->there()) away.push_back(Ref<Value>(value));
    }
  }
  Values one;
  while (!away.empty()) {
    {
      const std::lock_guard lock(state_.lock);
      one.assign(1, away.back());
      away.pop_back();
      graph_.bury_if_dead(*one.front());
      if (one.front()->storage == nullptr) continue;
    }
    try {
      bring(one, 0);
      const std::lock_guard lock(state_.lock);
      unpin(state_, one);
    } catch (const std::exception& error) {
      const std::lock_guard lock(state_.lock);
      if (one.front()->storage == nullptr) continue;
      if (failed++ == 0) failure = what_of(error);
    }
  }
  const std::lock_guard lock(state_.lock);
  one.clear();
  if (failed > 1) failure += " (and " + std::to_string(failed - 1) + " more)";
  return failure;
}

}  // namespace stowage::runtime::evict
