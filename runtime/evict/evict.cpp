// Letting go: no kernel runs here, so this can happen inside the allocator, in the middle of any op.
//
//   storage ─► block            let_go(v, swap)       storage ─► DataPtr(null, v), reads throw
//                │ mark ─► v    ───────────────►      v.host ─► copy               block: free
#include <c10/core/CPUAllocator.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

#include "runtime/evict/budget.h"
#include "runtime/evict/now.h"
#include "runtime/memory/owners.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

thread_local std::int64_t tl_waited_ns = 0;

void evicted_storage_is_freed(void* context) {
  if (Budget* budget = active_budget()) budget->evicted_storage_dies(static_cast<Value*>(context));
}

std::string in_words(std::int64_t bytes) {
  if (bytes < 1 << 10) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  const bool small = bytes < 1 << 20;
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), "%.*f %s", small ? 1 : 2,
                static_cast<double>(bytes) / (small ? 1 << 10 : 1 << 20), small ? "KiB" : "MiB");
  return text.data();
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
  const owners::Unasked ours;
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
  for (Value* ghost : ghosts_) {
    if (ghost->pins == 0 && keeper_[ghost->id].soft_pins == 0) return let_go(*ghost, stowage::eager::How::kDrop);
  }
  while (const std::optional<stowage::eager::Victim> victim = keeper_.victim()) {
    if (let_go(*rows_[victim->value.index()], victim->how)) return true;
  }
  if (fetching_.empty()) return false;
  cancel_fetch(*fetching_.back());
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
    ++value->pins;
    if (value->id.valid()) keeper_.pin(value->id);
  }
}

void Budget::unpin(const Values& values) {
  for (const Ref<Value>& value : values) {
    --value->pins;
    if (value->id.valid()) keeper_.unpin(value->id);
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
      storage && static_cast<std::int64_t>(storage->nbytes()) == value.bytes && value_in(storage.get()) == &value;
  if (!as_known) {  // dying, or resized behind our back
    keeper_.never_evict(value.id);
    return false;
  }
  if (value.host != nullptr || (how == How::kDrop && !value.recipe)) how = How::kSwap;
  if (how == How::kSwap && !copy_out(value, storage->_mutable_data_ptr_no_checks().get())) {
    if (!value.recipe || options_.release == stowage::eager::Release::kSwapOnly) {
      keeper_.never_evict(value.id);
      return false;
    }
    how = How::kDrop;
  }
  const bool swap = how == How::kSwap;
  const c10::DataPtr block = take_block(value);
  set_where(value, swap ? Where::kSwapped : value.storage != nullptr ? Where::kDropped : Where::kGone);
  keeper_.released(value.id, how);
  ++(swap ? stats_.swaps_out : stats_.drops);
  record(swap ? Event::Kind::kSwapOut : Event::Kind::kDrop, value.bytes, value.origin);
  if (options_.poison) std::memset(block.get(), 0xAB, static_cast<std::size_t>(value.bytes));
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
    ghosts_.erase(std::remove(ghosts_.begin(), ghosts_.end(), &value), ghosts_.end());
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
  void* host = heap_->take(value.bytes);
  if (host == nullptr) return false;
  const std::int64_t start = now_ns();
  std::string failure = "not over the link";
  if (options_.link_gbps > 0) {
    try {
      failure = link_->finish(
          link_->start({Copy::Direction::kOut, const_cast<void*>(data), HostHeap::offset(host), value.bytes}));
    } catch (const std::exception&) {  // then by hand
    }
    stats_.stall_ns += now_ns() - start;
  }
  if (!failure.empty()) std::memcpy(host, data, static_cast<std::size_t>(value.bytes));
  value.host = host;
  stats_.swapped_bytes += value.bytes;
  return true;
}

void Budget::finish_out(Value& value) {
  if (!value.going_out) return;
  const std::int64_t start = now_ns();
  const std::string failure = link_->finish(*std::exchange(value.going_out, std::nullopt));
  if (!failure.empty() && value.holder() != nullptr) {  // its source is there until now
    std::memcpy(value.host, value.holder()->_mutable_data_ptr_no_checks().get(), static_cast<std::size_t>(value.bytes));
  }
  stats_.stall_ns += now_ns() - start;
  leaving_.erase(std::remove(leaving_.begin(), leaving_.end(), &value), leaving_.end());
}

void Budget::drop_host_copy(Value& value) {
  if (value.host == nullptr) return;
  finish_out(value);
  heap_->give_back(std::exchange(value.host, nullptr), value.bytes);
  keeper_.host_copy_lost(value.id);
}

// One limit, one shortfall, and what must stay: by line of the user's code and by why, the three largest.
std::string Budget::explain(std::int64_t bytes) const {
  std::map<std::string, std::int64_t> stays;
  std::int64_t known = 0;
  const auto why = [&](const Value& value) {
    if (value.known_outside) return " (its address is known outside)";
    if (value.pins > 0) return " (in use)";
    const bool no_way = options_.release == stowage::eager::Release::kDropOnly && !value.recipe && !value.small;
    return no_way ? " (cannot be computed again)" : "";
  };
  for (const Value* value : values()) {
    const bool in_memory = value->resident() && (value->storage != nullptr || value->own);
    if (!in_memory) continue;
    known += value->bytes;
    const std::string line = owners::line_of(value->owner);
    stays[(line.empty() ? value->name() : "from " + line) + why(*value)] += value->bytes;
  }
  if (live_bytes() > known) stays["unseen or inside operators"] += live_bytes() - known;
  std::vector<std::pair<std::string, std::int64_t>> largest(stays.begin(), stays.end());
  std::stable_sort(largest.begin(), largest.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const std::int64_t needed_bytes = live_bytes() + bytes;
  std::ostringstream text;
  text << "stowage: a limit of " << in_words(current_limit_) << " is short by "
       << in_words(needed_bytes - current_limit_);
  if (running_ != nullptr) {
    text << ": " << running_->op->name;
    if (const std::string line = owners::line_of_gradient(); !line.empty()) text << " in the backward pass of " << line;
    if (bytes > 0) text << " asks for " << in_words(bytes);
  } else if (bytes > 0) {
    text << ": " << in_words(bytes) << " are asked for";
  }
  text << ", and what is in memory must stay";
  for (std::size_t i = 0; i < std::min<std::size_t>(largest.size(), 3); ++i) {
    if (i > 0 && largest[i].second < live_bytes() / 100) break;
    text << (i == 0 ? ": " : ", ") << in_words(largest[i].second) << " " << largest[i].first;
  }
  text << ". At least " << needed_bytes << " bytes are needed here";
  return text.str();
}

}  // namespace stowage::runtime::evict
