// Bringing back all that is away: the budget ends, or sleeps. One after the other, so that what fails is named after all
// the rest is back.
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
