// Bringing back all that is away: the budget ends, or sleeps. One after the other, so that what fails is named after all
// the rest is back. Or leaving it where it waits.
#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "runtime/evict/block.h"
#include "runtime/evict/restorer.h"
#include "runtime/evict/running.h"
#include "runtime/memory/what.h"

namespace stowage::runtime::evict {
namespace {

// Of the limit, or of what is alive in the end where that is more: what makes a dropped one again needs room, too. 0: none.
constexpr std::array kLimits = {1.0, 1.125, 1.25, 1.5, 2.0, 0.0};

}  // namespace

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

std::string Restorer::bring_all_back(AllBack limit) {
  const owners::Unasked ours;
  Values away, back;
  std::int64_t alive_bytes = 0;
  {
    const std::lock_guard lock(state_.lock);
    while (!state_.table.coming_in().empty()) copies_.cancel_in(state_.at(state_.table.coming_in().back()));
    alive_bytes = state_.live_bytes();
    for (Value* value : state_.values) {
      if (value->storage == nullptr) {
        if (value->own) alive_bytes -= value->bytes();
        continue;
      }
      if (!value->there()) alive_bytes += value->bytes();
      (value->there() ? back : away).push_back(Ref<Value>(value));
    }
    pin(state_, back);
  }
  back.reserve(back.size() + away.size());
  std::string failure;
  const std::int64_t least_bytes = std::max(state_.options.limit_bytes, alive_bytes);
  for (const double share : kLimits) {
    if (away.empty()) break;
    if (limit == AllBack::kWidens) {
      const std::lock_guard lock(state_.lock);
      state_.limit_bytes = share > 0 ? static_cast<std::int64_t>(share * static_cast<double>(least_bytes))
                                     : std::numeric_limits<std::int64_t>::max();
      state_.set_limit(state_.limit_bytes);
    }
    failure = bring_each(away, back);
    if (limit == AllBack::kHolds) break;
  }
  const std::lock_guard lock(state_.lock);
  unpin(state_, back);
  back.clear();
  away.clear();
  return failure;
}

// Those that cannot come stay in `away`. The others are pinned, so that none has to go again for the next.
std::string Restorer::bring_each(Values& away, Values& back) {
  std::string failure;  // the first
  Values failed;
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
      back.push_back(one.front());
    } catch (const std::exception& error) {
      const std::lock_guard lock(state_.lock);
      if (one.front()->storage == nullptr) continue;
      if (failed.empty()) failure = what_of(error);
      failed.push_back(one.front());
    }
  }
  const std::lock_guard lock(state_.lock);
  one.clear();
  if (failed.size() > 1) failure += " (and " + std::to_string(failed.size() - 1) + " more)";
  away = std::move(failed);
  return failure;
}

}  // namespace stowage::runtime::evict
