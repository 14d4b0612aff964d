// Bringing back: copies from the host store, and recomputation through recipes, before anything reads.
//
//   v dropped ── recipe: op(a, b) ──► bring a, b (recursively) ──► run op ──► its block becomes v's
//
// Operands are brought one after the other, and while one is being made the others may have to go again: they are
// pinned softly (given up last), and for good once all are there together. Recomputing a chain of n dropped values
// takes n runs when its intermediates fit; when memory is so short that they do not, work multiplies, and is cut off at
// kMostRuns for one access.
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "runtime/evict/budget.h"
#include "runtime/evict/now.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

constexpr int kMostTries = 12;
constexpr std::int64_t kMostRuns = 3000;

}  // namespace

// On return all are there and pinned; the caller unpins.
void Budget::bring(const Values& values, int depth) {
  const std::lock_guard one_at_a_time(restoring_);
  if (depth == 0) work_left_ = kMostRuns;
  soft_pin(values, true);
  try {
    start_fetches(values);
    for (int tries = 0; !pin_if_all_there(values); ++tries) {
      if (tries == kMostTries) {
        bring_one_by_one(values, depth);
        break;
      }
      for (const Ref<Value>& value : values) restore_value(*value, depth);
    }
  } catch (...) {
    soft_pin(values, false);
    throw;
  }
  soft_pin(values, false);
}

void Budget::soft_pin(const Values& values, bool on) {
  const std::lock_guard lock(state_);
  for (const Ref<Value>& value : values) {
    if (value->small()) continue;
    on ? table.soft_pin(value->id) : table.soft_unpin(value->id);
  }
}

bool Budget::pin_if_all_there(const Values& values) {
  const std::lock_guard lock(state_);
  const bool all = std::all_of(values.begin(), values.end(), [](const Ref<Value>& value) { return at_hand(*value); });
  if (all) pin(values);
  return all;
}

// The copies that an op has to wait for run one behind the other, and those that come after them are known to the lane
// before the wait.
void Budget::start_fetches(const Values& values) {
  bool waits = false;
  for (const Ref<Value>& value : values) {
    const std::int64_t bytes = swapped_bytes(*value);
    if (bytes == 0) continue;
    c10::DataPtr block = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes));
    const std::lock_guard lock(state_);
    if (value->residence() == Residence::kSwapped) start_fetch(*value, std::move(block));
    waits = true;
  }
  if (!waits) return;
  const std::lock_guard lock(state_);
  follow_advice();
}

// The last way: what is there stays, whatever it costs the others.
void Budget::bring_one_by_one(const Values& values, int depth) {
  {
    const std::lock_guard lock(state_);
    pin(values);
  }
  try {
    for (const Ref<Value>& value : values) restore_value(*value, depth);
    const std::lock_guard lock(state_);
    for (const Ref<Value>& value : values) {
      TORCH_CHECK_WITH(OutOfMemoryError, at_hand(*value), "stowage: ", value->name(),
                       " cannot be brought back beside the others; ", explain(0));
    }
  } catch (...) {
    const std::lock_guard lock(state_);
    unpin(values);
    throw;
  }
}

// 0 where it is not on the host, or need not come back from there.
std::int64_t Budget::swapped_bytes(const Value& value) const {
  const std::lock_guard lock(state_);
  return value.residence() == Residence::kSwapped && !at_hand(value) ? value.bytes() : 0;
}

// There, or a recipe can read it on the host: what only a Python object has cannot be put back without the GIL, which
// is never waited for here, and no op can ask for it.
bool Budget::at_hand(const Value& value) {
  return there(value) || (value.residence() == Residence::kSwapped && value.storage != nullptr &&
                          torch_versions::only_python_has(*value.storage));
}

// Others take notes meanwhile, start fetches of it, or let go of it again: what it was under one lock it need not be
// under the next.
void Budget::restore_value(Value& value, int depth) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (restore_once(value, depth)) return;
  }
}

// False when it must be looked at again.
bool Budget::restore_once(Value& value, int depth) {
  std::int64_t swapped_bytes = 0;
  {
    const std::lock_guard lock(state_);
    bury_if_dead(value);
    if (at_hand(value)) return true;
    TORCH_CHECK((value.residence() == Residence::kSwapped || value.residence() == Residence::kFetching || value.recipe),
                "stowage: ", value.name(), " cannot be brought back");
    if (value.residence() == Residence::kFetching) {
      finish_fetch(value, true);
      return at_hand(value);
    }
    if (value.residence() == Residence::kSwapped) swapped_bytes = value.bytes();
  }
  if (swapped_bytes > 0) return fetch_back(value, swapped_bytes);
  recompute(value, depth);
  return true;
}

// False when another thread has begun to fetch it, while this one was looking for room, or has let go of its storage.
bool Budget::fetch_back(Value& value, std::int64_t bytes) {
  c10::DataPtr block = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes));
  const std::lock_guard lock(state_);
  if (value.residence() != Residence::kSwapped) return false;
  const std::int64_t start = now_ns();
  if (options_.link_gbps > 0) {
    const Link::Ticket ticket =
        link_->start({Copy::Direction::kIn, block.get(), HostHeap::offset(value.host), value.bytes()});
    if (!link_->finish(ticket).empty()) std::memcpy(block.get(), value.host, static_cast<std::size_t>(value.bytes()));
  } else {
    std::memcpy(block.get(), value.host, static_cast<std::size_t>(value.bytes()));
  }
  const std::int64_t took = now_ns() - start;
  if (!put(value, block)) return false;
  stats_.stall_ns += took;
  ++stats_.swaps_in;
  stats_.swapped_in_bytes += value.bytes();
  table.restored(value.id, stowage::eager::How::kSwap, took);
  record(Event::Kind::kSwapIn, value.bytes(), value.origin);
  return true;
}

// The block becomes the value's, in its storage or in one of our own. False, and nothing has changed, where only a
// Python object has the storage, or its last owner lets go of it this very moment: it is buried by whoever looks next.
bool Budget::put(Value& value, c10::DataPtr& block) {
  StoragePtr held;
  if (value.storage != nullptr) {
    held = torch_versions::hold(value.storage);
    if (!held) return false;
    state_.let_go_after(held);
  }
  *block_mark(block.get_context(), block.get_deleter()) = &value;
  if (c10::StorageImpl* storage = held.get()) {
    torch_versions::allow_reads(*storage);
    storage->_mutable_data_ptr_no_checks().release_context();  // the context's reference becomes the mark's
    content_returns(storage, block.get());
    storage->set_data_ptr_noswap(std::move(block));
    watch(*storage);
  } else {
    value.own = bare_storage(std::move(block), value.bytes());
  }
  return true;
}

// ---- All of it: the budget ends, or sleeps

// With what only Python objects have, whose references may have to wait for the GIL: no lock is held meanwhile.
std::vector<Budget::StoragePtr> Budget::hold_storages_away() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> away;
  {
    const std::lock_guard lock(state_);
    for (const Value* value : values()) {
      if (value->storage == nullptr || there(*value)) continue;
      c10::raw::weak_intrusive_ptr::incref(value->storage);
      away.push_back(c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(value->storage));
    }
  }
  std::vector<StoragePtr> held;
  for (const c10::weak_intrusive_ptr<c10::StorageImpl>& storage : away) held.push_back(storage.lock());
  return held;
}

std::string Budget::bring_all_back() {
  std::string failures;
  Values away;
  {
    const std::lock_guard lock(state_);
    while (!table.coming_in().empty()) cancel_fetch(*rows_[table.coming_in().back()]);
    for (Value* value : values()) {
      if (value->storage != nullptr && !there(*value)) away.push_back(Ref<Value>(value));
    }
  }
  Values one;
  while (!away.empty()) {
    {
      const std::lock_guard lock(state_);
      one.assign(1, away.back());
      away.pop_back();
      bury_if_dead(*one.front());
      if (one.front()->storage == nullptr) continue;
    }
    try {
      bring(one, 0);
      const std::lock_guard lock(state_);
      unpin(one);
    } catch (const std::exception& error) {
      const std::lock_guard lock(state_);
      if (one.front()->storage == nullptr) continue;
      if (!failures.empty()) failures += "; ";
      failures += error.what();
    }
  }
  const std::lock_guard lock(state_);
  one.clear();
  return failures;
}

// ---- Ahead of need

// False when it does not fit now.
bool Budget::start_fetch(Value& value) {
  bury_if_dead(value);
  if (value.residence() != Residence::kSwapped || value.host == nullptr || at_hand(value) ||
      value.bytes() > current_limit_ - live_bytes())
    return false;
  start_fetch(value, c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(value.bytes())));
  return true;
}

void Budget::start_fetch(Value& value, c10::DataPtr block) {
  if (options_.poison) std::memset(block.get(), 0xCD, static_cast<std::size_t>(value.bytes()));
  table.fetch_started(value.id);
  try {
    value.coming_in = link_->start({Copy::Direction::kIn, block.get(), HostHeap::offset(value.host), value.bytes()});
  } catch (...) {
    table.fetch_cancelled(value.id);
    throw;
  }
  value.incoming = std::move(block);
  record(Event::Kind::kFetch, value.bytes(), value.origin);
}

void Budget::finish_fetch(Value& value, bool waited_for) {
  bury_if_dead(value);
  if (value.residence() != Residence::kFetching) return;
  const std::int64_t start = now_ns();
  const std::string failure = link_->finish(*std::exchange(value.coming_in, std::nullopt));
  const std::int64_t end = now_ns();
  if (waited_for) stats_.stall_ns += end - start;
  c10::DataPtr block = std::exchange(value.incoming, c10::DataPtr());
  if (!failure.empty()) std::memcpy(block.get(), value.host, static_cast<std::size_t>(value.bytes()));
  bool there = false;
  try {
    there = put(value, block);
  } catch (...) {
    table.fetch_cancelled(value.id);
    throw;
  }
  if (!there) return table.fetch_cancelled(value.id);
  ++stats_.swaps_in;
  stats_.swapped_in_bytes += value.bytes();
  table.fetch_done(value.id, waited_for ? end - start : 0);
}

void Budget::cancel_fetch(Value& value) {
  link_->finish(*std::exchange(value.coming_in, std::nullopt));
  const c10::DataPtr unused = std::exchange(value.incoming, c10::DataPtr());
  table.fetch_cancelled(value.id);
}

// False when the host store has no room for it, or it is not there.
bool Budget::start_copy_out(Value& value) {
  // pinned: may be written to
  if (value.host != nullptr || !value.resident() || value.holder() == nullptr || value.pins() > 0) return false;
  void* host = heap_->take(value.bytes());
  if (host == nullptr) return false;
  void* data = value.holder()->_mutable_data_ptr_no_checks().get();
  if (data == nullptr) {  // it is dying in another thread
    heap_->give_back(host, value.bytes());
    return false;
  }
  try {
    table.copy_out_started(value.id);
    value.going_out = link_->start({Copy::Direction::kOut, data, HostHeap::offset(host), value.bytes()});
  } catch (...) {
    table.host_copy_lost(value.id);
    heap_->give_back(host, value.bytes());
    throw;
  }
  value.host = host;
  stats_.swapped_bytes += value.bytes();
  return true;
}

// Copies that are complete by now are taken note of.
void Budget::poll_copies() {
  for (std::size_t i = 0; i < table.coming_in().size();) {
    Value& value = *rows_[table.coming_in()[i]];
    link_->complete(*value.coming_in) ? finish_fetch(value, false) : static_cast<void>(++i);
  }
  for (std::size_t i = 0; i < table.going_out().size();) {
    Value& value = *rows_[table.going_out()[i]];
    link_->complete(*value.going_out) ? finish_out(value) : static_cast<void>(++i);
  }
}

void Budget::follow_advice() {
  pin_running();  // what other threads' ops use is not let go
  poll_copies();
  using Kind = stowage::eager::Advice::Kind;
  for (int asked = 0; asked < kMostAdvice; ++asked) {
    const stowage::eager::Advice advice = keeper_.advise(current_limit_ - live_bytes());
    if (advice.kind == Kind::kNone) return;
    Value* value = rows_[advice.value];
    if (value == nullptr) return;
    if (advice.kind == Kind::kFetch && !start_fetch(*value)) return;
    if (advice.kind == Kind::kCopyOut && !start_copy_out(*value)) return;
    if (advice.kind == Kind::kRelease && (!value->resident() || value->pins() > 0 || !let_go(*value, advice.how)))
      return;
  }
}

}  // namespace stowage::runtime::evict
