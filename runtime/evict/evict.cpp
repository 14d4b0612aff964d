// Letting go: no kernel runs here, so this can happen inside the allocator, in the middle of any op.
//
//   storage ─► block            let_go(v, swap)       storage ─► DataPtr(null, v), reads throw
//                │ mark ─► v    ───────────────►      v.host ─► copy               block: free
#include <c10/core/CPUAllocator.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "runtime/evict/budget.h"
#include "runtime/evict/now.h"
#include "runtime/torch/torch_versions.h"
#include "stowage/mebibytes.h"

namespace stowage::runtime::evict {
namespace {

thread_local std::int64_t tl_waited_ns = 0;

void evicted_storage_is_freed(void* context) {
  if (Budget* budget = active_budget()) budget->evicted_storage_dies(static_cast<Value*>(context));
}

struct CountWait {
  std::int64_t start = now_ns();
  ~CountWait() { tl_waited_ns += now_ns() - start; }
};

}  // namespace

c10::DeleterFnPtr evicted_deleter() { return &evicted_storage_is_freed; }

std::int64_t waited_ns() { return tl_waited_ns; }

void Budget::make_room(std::int64_t bytes) {
  const CountWait count;
  const PauseWatching beside_the_op;
  const std::lock_guard lock(state_);
  if (asleep_) return wake();
  if (home_away_ && at_home()) home_is_back(/*inside_op=*/true);
  const std::int64_t start = now_ns();
  pin_running();
  while (live_bytes() + bytes > current_limit_) {
    if (let_go_of_one()) continue;
    ++stats_.out_of_memory;
    stats_.short_bytes = std::max(stats_.short_bytes, live_bytes() + bytes - current_limit_);
    TORCH_CHECK_WITH(OutOfMemoryError, false, explain(bytes));
  }
  stats_.evict_ns += now_ns() - start;
}

// Ghosts first: bytes that no storage of the program holds were made only on the way to something else.
bool Budget::let_go_of_one() {
  for (const ValueId ghost : table.ghosts()) {
    if (table.free_to_go(ghost, /*last_resort=*/false)) return let_go(*rows_[ghost], stowage::eager::How::kDrop);
  }
  while (const std::optional<stowage::eager::Victim> victim = keeper_.victim()) {
    if (let_go(*rows_[victim->value], victim->how)) return true;
  }
  if (table.coming_in().empty()) return false;
  cancel_fetch(*rows_[table.coming_in().back()]);
  return true;
}

// Ops under way keep what they use: told to the keeper only now, since most ops never meet the limit.
void Budget::pin_running() {
  for (Running* running = running_; running != nullptr; running = running->next) {
    if (!running->ready) continue;
    if (!running->pinned) pin(running->values);
    running->pinned = true;
    const auto pin_new = [&](const StoragePtr& storage) {  // what another thread has met or made there meanwhile
      const Ref<Value> now(value_in(storage.get()));
      if (!now || std::find(running->values.begin(), running->values.end(), now) != running->values.end()) return;
      running->values.push_back(now);
      pin({now});
    };
    for (const Written& written : running->written) pin_new(written.storage);
    for (const StoragePtr& storage : running->moved_on) pin_new(storage);
  }
}

void Budget::pin(const Values& values) {
  for (const Ref<Value>& value : values) {
    if (!value->small()) table.pin(value->id);
  }
}

void Budget::unpin(const Values& values) {
  for (const Ref<Value>& value : values) {
    if (!value->small()) table.unpin(value->id);
  }
}

// False when it cannot go after all; then it is no candidate any more.
bool Budget::let_go(Value& value, stowage::eager::How how) {
  using stowage::eager::How;
  const Ref<Value> self(&value);
  // Another thread may be letting go of it right now; if it does so meanwhile, ours is the last reference, which ends
  // after the lock.
  const c10::intrusive_ptr<c10::StorageImpl> storage =
      value.storage != nullptr ? torch_versions::hold(value.storage) : value.own;
  if (value.storage != nullptr && storage) state_.let_go_after(storage);
  const bool as_known =
      storage && static_cast<std::int64_t>(storage->nbytes()) == value.bytes() && value_in(storage.get()) == &value;
  if (!as_known) {  // dying, or resized behind our back
    table.never_evict(value.id);
    return false;
  }
  if (value.host != nullptr || (how == How::kDrop && !value.recipe)) how = How::kSwap;
  if (how == How::kSwap && !copy_out(value, storage->_mutable_data_ptr_no_checks().get())) {
    if (!value.recipe || options_.release == stowage::eager::Release::kSwapOnly) {
      table.never_evict(value.id);
      return false;
    }
    how = How::kDrop;
  }
  const bool swap = how == How::kSwap;
  const c10::DataPtr block = take_block(value);
  table.released(value.id, how);
  ++(swap ? stats_.swaps_out : stats_.drops);
  record(swap ? Event::Kind::kSwapOut : Event::Kind::kDrop, value.bytes(), value.origin);
  if (options_.poison) std::memset(block.get(), 0xAB, static_cast<std::size_t>(value.bytes()));
  return true;
}

// The value's block, no longer marked; its storage, if it has one, is left evicted.
c10::DataPtr Budget::take_block(Value& value) {
  c10::StorageImpl* storage = value.holder();
  c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  *block_mark(data.get_context(), data.get_deleter()) = nullptr;
  c10::DataPtr block = std::move(data);
  data = c10::DataPtr();
  if (value.storage == nullptr) {
    value.own.reset();
    return block;
  }
  content_leaves(block.get(), storage);
  // The mark's reference becomes the context's.
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, &value, evicted_deleter(), c10::Device(c10::kCPU)));
  unwatch(*storage);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "stowage: " + value.name() +
      " is not in memory now (stowage.budget has let it go), and is read past PyTorch's dispatcher or by a "
      "thread that the budget does not see; call budget.restore(tensor) before, or run the thread's work in `with "
      "budget.attach():`");
  return block;
}

// Waited for. False when the host store is full.
bool Budget::copy_out(Value& value, const void* data) {
  if (value.host != nullptr) {
    finish_out(value);
    return true;
  }
  void* host = heap_->take(value.bytes());
  if (host == nullptr) return false;
  const std::int64_t start = now_ns();
  std::string failure = "not over the link";
  if (options_.link_gbps > 0) {
    try {
      failure = link_->finish(
          link_->start({Copy::Direction::kOut, const_cast<void*>(data), HostHeap::offset(host), value.bytes()}));
    } catch (const std::exception&) {  // then by hand
    }
    stats_.stall_ns += now_ns() - start;
  }
  if (!failure.empty()) std::memcpy(host, data, static_cast<std::size_t>(value.bytes()));
  value.host = host;
  stats_.swapped_bytes += value.bytes();
  return true;
}

void Budget::finish_out(Value& value) {
  if (!value.going_out) return;
  const std::int64_t start = now_ns();
  const std::string failure = link_->finish(*std::exchange(value.going_out, std::nullopt));
  if (!failure.empty() && value.holder() != nullptr) {  // its source is there until now
    std::memcpy(value.host, value.holder()->_mutable_data_ptr_no_checks().get(),
                static_cast<std::size_t>(value.bytes()));
  }
  stats_.stall_ns += now_ns() - start;
  table.copy_out_done(value.id);
}

void Budget::drop_host_copy(Value& value) {
  if (value.host == nullptr) return;
  finish_out(value);
  heap_->give_back(std::exchange(value.host, nullptr), value.bytes());
  table.host_copy_lost(value.id);
}

// What keeps the limit from being met, largest first.
std::string Budget::explain(std::int64_t bytes) const {
  std::int64_t pinned = 0;
  std::int64_t outside = 0;
  std::int64_t known = 0;
  std::int64_t no_recipe = 0;
  std::vector<const Value*> largest;
  for (const Value* value : values()) {
    if (value->resident() && (value->storage != nullptr || value->own)) known += value->bytes();
    const bool must_stay = options_.release == stowage::eager::Release::kDropOnly && !value->recipe &&
                           value->resident() && !value->small();
    if (value->pins() == 0 && !value->known_outside && must_stay) no_recipe += value->bytes();
    if (value->pins() == 0 && !value->known_outside) continue;
    (value->known_outside ? outside : pinned) += value->bytes();
    largest.push_back(value);
  }
  std::sort(largest.begin(), largest.end(), [](const Value* a, const Value* b) { return a->bytes() > b->bytes(); });
  std::ostringstream text;
  text << "stowage: a limit of " << mebibytes(current_limit_, 2) << " is short by "
       << mebibytes(live_bytes() + bytes - current_limit_, 2) << ": ";
  if (bytes > 0) text << mebibytes(bytes, 2) << " are asked for, ";
  text << mebibytes(live_bytes(), 2) << " are live; pinned by the op under way";
  if (running_ != nullptr) text << " (" << running_->op->name << ")";
  text << ": " << mebibytes(pinned, 2) << "; address known outside: " << mebibytes(outside, 2)
       << "; without a recipe, and not to be swapped: " << mebibytes(no_recipe, 2)
       << "; inside ops or never seen: " << mebibytes(std::max<std::int64_t>(live_bytes() - known, 0), 2);
  for (std::size_t i = 0; i < std::min<std::size_t>(largest.size(), 3); ++i)
    text << (i == 0 ? ". Largest: " : ", ") << largest[i]->name();
  return text.str();
}

}  // namespace stowage::runtime::evict
