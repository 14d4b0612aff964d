// An optimizer step that does not fit is taken back: half of the parameters updated would be neither the old model nor
// the new one.
//
//   step begins ── p.mul_ ── m.lerp_ ── p.addcdiv_ ── ... ── out of memory      every first write to a storage has left a copy of
//        ▲                                                     │                what was there on the host; all are written back
//        └─────────────────────────────────────────────────────┘
//
// The copies cost as much as the state is large, so they are made only while it is unknown whether the step fits: the
// first one of each optimizer, and later ones that begin with more bytes that cannot leave than those that went
// through; not where half of the limit is free.
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "runtime/evict/budget.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {

void Budget::begin_update(std::uint64_t optimizer) {
  const std::lock_guard lock(state_);
  if (!asleep_ && at_home()) {
    attach_thread(true);  // woken inside a backward pass, whose end takes the hook off again
    if (home_away_) home_is_back(/*inside_op=*/false);
  }
  if (++updates_under_way_ > 1 || asleep_) return;
  forget_undo();
  updating_ = optimizer;
  fixed_bytes_ = live_bytes() - table.evictable_bytes();
  const auto last = went_through_.find(optimizer);
  const bool like_one_before = last != went_through_.end() && fixed_bytes_ <= last->second + options_.limit_bytes / 64;
  undoing_ = live_bytes() > options_.limit_bytes / 2 && !like_one_before;
}

void Budget::end_update() {
  {
    const std::lock_guard lock(state_);
    if (updates_under_way_ == 0 || --updates_under_way_ > 0 || asleep_) return;
    std::int64_t& fixed = went_through_[updating_];
    fixed = std::max(fixed, fixed_bytes_);
    forget_undo();
    if (!may_sleep()) return;
  }
  sleep();
}

// An optimizer does not record gradients: what does comes after one that was left by an exception.
bool Budget::still_updating() {
  if (updates_under_way_ > 0 && (c10::GradMode::is_enabled() || !worth_remembering())) {
    updates_under_way_ = 0;
    forget_undo();
  }
  return undoing_;
}

// The storage is about to be written.
void Budget::save_for_undo(const Written& written) {
  const at::Tensor& tensor = written.tensor;
  c10::StorageImpl* storage = storage_of(tensor);
  const auto bytes = static_cast<std::int64_t>(storage->nbytes());
  if (bytes == 0 || undo_.contains(storage)) return;
  Undo undo;
  undo.bytes = bytes;
  undo.host = heap_->take(bytes);
  if (undo.host == nullptr) return;  // then a failure is as it would be without stowage
  std::memcpy(undo.host, storage->_mutable_data_ptr_no_checks().get(), static_cast<std::size_t>(bytes));
  if (bytes < kSmallBytes) undo.small = tensor;  // its death would not be noticed
  undo_.emplace(storage, std::move(undo));
}

void Budget::forget_undo(c10::StorageImpl* storage) {
  const auto it = undo_.find(storage);
  if (it == undo_.end()) return;
  heap_->give_back(it->second.host, it->second.bytes);
  if (it->second.small.defined()) state_.let_go_after(std::move(it->second.small));
  undo_.erase(it);
}

void Budget::forget_undo() {
  undoing_ = false;
  while (!undo_.empty()) forget_undo(undo_.begin()->first);
}

void Budget::roll_back() {
  updates_under_way_ = 0;
  undoing_ = false;
  for (auto& [storage, undo] : undo_) {
    const StoragePtr held = torch_versions::hold(storage);
    if (!held) continue;  // no tensor looks into it any more
    state_.let_go_after(held);
    Value* now = value_in(storage);
    if (now == nullptr || now->resident()) {
      if (now != nullptr && !now->known_outside) take_off(*now);
      std::memcpy(storage->_mutable_data_ptr_no_checks().get(), undo.host, static_cast<std::size_t>(undo.bytes));
    } else {
      hold_on_host(*storage, *now, std::exchange(undo.host, nullptr));
    }
  }
  for (auto& [storage, undo] : undo_) {
    if (undo.host != nullptr) heap_->give_back(undo.host, undo.bytes);
    if (undo.small.defined()) state_.let_go_after(std::move(undo.small));
  }
  undo_.clear();
}

// The evicted storage holds, from now on, what lies on the host at `host`.
void Budget::hold_on_host(c10::StorageImpl& storage, Value& now, void* host) {
  const Ref<Value> past = Ref<Value>::adopt(&now);  // the context's reference
  now.moves_out();
  if (now.residence() == Residence::kFetching) cancel_fetch(now);
  give_up(now);
  Ref<Value> value(new Value(*this));
  value->moves_into(&storage);
  value->origin = past->origin;
  value->made = past->made;
  note_row(*value, past->bytes(), /*evictable=*/true);
  value->host = host;
  table.released(value->id, stowage::eager::How::kSwap);
  storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, value.release(), evicted_deleter(), c10::Device(c10::kCPU)));
}

}  // namespace stowage::runtime::evict
