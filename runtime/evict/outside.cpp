#include "runtime/evict/outside.h"

#include <utility>

#include "runtime/evict/block.h"
#include "runtime/evict/running.h"

namespace stowage::runtime::evict {

// The tensor's value, which is there now, pinned; none where there is nothing that could leave. Once the lock is free
// another thread may write to it, so that it has another value.
Values Outside::brought(const at::Tensor& tensor, bool small_too) {
  const owners::Unasked ours;
  c10::StorageImpl* storage = storage_of(tensor);
  Values one;
  if (storage == nullptr || !state_.active) return one;
  {
    const std::lock_guard lock(state_.lock);
    Value* value = value_in(storage);
    if (value == nullptr) value = graph_.meet(tensor, nullptr, false);
    if (value == nullptr || (value->small() && !small_too)) return one;
    one.push_back(Ref<Value>(value));
  }
  return brought(std::move(one));
}

Values Outside::brought(Values one) {
  try {
    restorer_.bring(one, 0);
  } catch (...) {
    const std::lock_guard lock(state_.lock);
    one.clear();
    throw;
  }
  return one;
}

void Outside::restore(const at::Tensor& tensor) {
  for (bool was_it = false; !was_it;) {
    Values one = brought(tensor, /*small_too=*/true);
    if (one.empty()) return;
    const std::lock_guard lock(state_.lock);
    was_it = value_in(storage_of(tensor)) == one.front().get();
    if (was_it) graph_.known_outside(storage_of(tensor));
    unpin(state_, one);
    one.clear();
  }
}

std::int64_t Outside::hold(const at::Tensor& tensor) { return held(brought(tensor, /*small_too=*/false)); }

std::int64_t Outside::hold(c10::StorageImpl* storage) {
  const owners::Unasked ours;
  if (!state_.active) return 0;
  Values one;
  {
    const std::lock_guard lock(state_.lock);
    Value* value = value_in(storage);
    if (value == nullptr || value->small()) return 0;
    one.push_back(Ref<Value>(value));
  }
  return held(brought(std::move(one)));
}

std::int64_t Outside::held(Values one) {
  if (one.empty()) return 0;
  const std::lock_guard lock(state_.lock);
  holds_.emplace(++last_hold_, std::move(one));
  return last_hold_;
}

void Outside::release(std::int64_t number) {
  const std::lock_guard lock(state_.lock);
  const auto held = holds_.find(number);
  if (held == holds_.end()) return;
  unpin(state_, held->second);
  holds_.erase(held);
}

void Outside::touched(c10::StorageImpl* storage) {
  const std::lock_guard lock(state_.lock);
  graph_.known_outside(storage);
}

std::string Outside::evict(const at::Tensor& tensor, How how) {
  c10::StorageImpl* storage = storage_of(tensor);
  TORCH_CHECK(storage != nullptr && state_.active, "evict() takes a tensor with memory, inside the block");
  const std::lock_guard lock(state_.lock);
  pin_running(state_);
  Value* value = value_in(storage);
  if (value == nullptr) value = graph_.meet(tensor, nullptr, false);
  if (value == nullptr || value->small() || value->pins() > 0 || !value->resident()) return describe(tensor);
  if (!state_.table[value->id].evictable) return describe(tensor);
  room_.let_go(*value, how);
  return describe(tensor);
}

std::string Outside::describe(const at::Tensor& tensor) {
  const std::lock_guard lock(state_.lock);
  const Value* value = storage_of(tensor) != nullptr ? value_in(storage_of(tensor)) : nullptr;
  if (value == nullptr) return "unknown";
  switch (value->residence()) {
    case Residence::kResident: return value->known_outside ? "kept" : value->recipe ? "recomputable" : "resident";
    case Residence::kFetching: return "fetching";
    case Residence::kSwapped: return "swapped";
    case Residence::kDropped: return "dropped";
    case Residence::kGone: return "gone";
  }
  return {};
}

}  // namespace stowage::runtime::evict
