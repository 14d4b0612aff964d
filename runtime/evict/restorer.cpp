#include "runtime/evict/restorer.h"

#include <algorithm>

#include "runtime/evict/block.h"
#include "runtime/evict/running.h"

namespace stowage::runtime::evict {
namespace {

constexpr int kMostTries = 12;

}  // namespace

void Restorer::bring(const Values& values, int depth) {
  const std::lock_guard one_at_a_time(state_.restoring);
  if (depth == 0) recompute_.new_access();
  soft_pin(values, true);
  try {
    start_fetches(values);
    for (int tries = 0; !pin_if_all_there(values); ++tries) {
      if (tries == kMostTries) {
        bring_one_by_one(values, depth);
        break;
      }
      for (const Ref<Value>& value : values) restore(*value, depth);
    }
  } catch (...) {
    soft_pin(values, false);
    throw;
  }
  soft_pin(values, false);
}

void Restorer::soft_pin(const Values& values, bool on) {
  const std::lock_guard lock(state_.lock);
  for (const Ref<Value>& value : values) {
    if (value->small()) continue;
    on ? state_.table.soft_pin(value->id) : state_.table.soft_unpin(value->id);
  }
}

bool Restorer::pin_if_all_there(const Values& values) {
  const std::lock_guard lock(state_.lock);
  const bool all = std::all_of(values.begin(), values.end(), [](const Ref<Value>& value) { return value->at_hand(); });
  if (all) pin(state_, values);
  return all;
}

// The copies that an op has to wait for run one behind the other, and those that come after them are known to the lane
// before the wait.
void Restorer::start_fetches(const Values& values) {
  bool waits = false;
  for (const Ref<Value>& value : values) {
    const std::int64_t bytes = bytes_to_fetch(*value);
    if (bytes == 0) continue;
    c10::DataPtr block = state_.block_of(bytes);
    const std::lock_guard lock(state_.lock);
    if (value->residence() == Residence::kSwapped) copies_.start_in(*value, std::move(block));
    waits = true;
  }
  if (!waits) return;
  const std::lock_guard lock(state_.lock);
  ahead_.follow_advice();
}

// 0 where it is not on the host, or need not come back from there.
std::int64_t Restorer::bytes_to_fetch(const Value& value) const {
  const std::lock_guard lock(state_.lock);
  return value.residence() == Residence::kSwapped && !value.at_hand() ? value.bytes() : 0;
}

// The last way: what is there stays, whatever it costs the others.
void Restorer::bring_one_by_one(const Values& values, int depth) {
  {
    const std::lock_guard lock(state_.lock);
    pin(state_, values);
  }
  try {
    for (const Ref<Value>& value : values) restore(*value, depth);
    const std::lock_guard lock(state_.lock);
    for (const Ref<Value>& value : values) {
      TORCH_CHECK_WITH(OutOfMemoryError, value->at_hand(), "stowage: ", value->name(),
                       " cannot be brought back beside the others; ", room_.explain(0));
    }
  } catch (...) {
    const std::lock_guard lock(state_.lock);
    unpin(state_, values);
    throw;
  }
}

void Restorer::restore(Value& value, int depth) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (restore_once(value, depth)) return;
  }
}

// False when it must be looked at again.
bool Restorer::restore_once(Value& value, int depth) {
  std::int64_t swapped_bytes = 0;
  {
    const std::lock_guard lock(state_.lock);
    graph_.bury_if_dead(value);
    if (value.at_hand()) return true;
    const Residence residence = value.residence();
    TORCH_CHECK(residence == Residence::kSwapped || residence == Residence::kFetching || value.recipe,
                "stowage: ", value.name(), " cannot be brought back");
    if (residence == Residence::kFetching) {
      ahead_.finish(value, true);
      return value.at_hand();
    }
    if (residence == Residence::kSwapped) swapped_bytes = value.bytes();
  }
  if (swapped_bytes > 0) return fetch_back(value, swapped_bytes);
  recompute_.run(value, depth);
  return true;
}

// False when another thread has begun to fetch it, while this one was looking for room, or has let go of its storage.
bool Restorer::fetch_back(Value& value, std::int64_t bytes) {
  c10::DataPtr block = state_.block_of(bytes);
  const std::lock_guard lock(state_.lock);
  if (value.residence() != Residence::kSwapped) return false;
  const std::int64_t took_ns = copies_.copy_in(value, block.get());
  if (!put(value, block)) return false;
  state_.stats.stall_ns += took_ns;
  ++state_.stats.swaps_in;
  state_.stats.swapped_in_bytes += bytes;
  state_.table.restored(value.id, How::kSwap, took_ns);
  state_.record(Event::Kind::kSwapIn, bytes, value.origin);
  return true;
}

}  // namespace stowage::runtime::evict
