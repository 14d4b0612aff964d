#include "runtime/evict/updates.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "runtime/evict/block.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {

bool worth_remembering() { return torch::autograd::get_current_graph_task_id() < 0 || c10::GradMode::is_enabled(); }

void Updates::enters() {
  under_way_ = 0;
  undoing_ = false;
}

void Updates::begin(std::uint64_t optimizer) {
  owners::update_begins(optimizer);
  const std::lock_guard lock(state_.lock);
  if (!awake_.asleep() && state_.at_home()) {
    attach_thread(true);  // woken inside a backward pass, whose end takes the hook off again
    awake_.home_comes_by(/*inside_op=*/false);
  }
  if (++under_way_ > 1 || awake_.asleep()) return;
  forget();
  optimizer_ = optimizer;
  fixed_bytes_ = state_.live_bytes() - state_.table.evictable_bytes();
  const auto last = went_through_.find(optimizer);
  const std::int64_t limit_bytes = state_.options.limit_bytes;
  const bool like_one_before = last != went_through_.end() && fixed_bytes_ <= last->second + limit_bytes / 64;
  undoing_ = !state_.options.soft && state_.live_bytes() > limit_bytes / 2 && !like_one_before;
}

void Updates::end(std::uint64_t optimizer) {
  owners::update_ends(optimizer);
  state_.device.count_others();
  {
    const std::lock_guard lock(state_.lock);
    if (under_way_ == 0 || --under_way_ > 0 || awake_.asleep()) return;
    std::int64_t& fixed_bytes = went_through_[optimizer_];
    fixed_bytes = std::max(fixed_bytes, fixed_bytes_);
    forget();
    if (!sleep_.is_due()) return;
  }
  sleep_.fall();
}

// An optimizer does not record gradients: what does comes after one that was left by an exception.
bool Updates::undoing() {
  if (under_way_ > 0 && (c10::GradMode::is_enabled() || !worth_remembering())) {
    under_way_ = 0;
    forget();
  }
  return undoing_;
}

void Updates::forget() {
  undoing_ = false;
  undo_.forget_all();
}

void Updates::roll_back() {
  if (!undoing_) return;
  under_way_ = 0;
  undoing_ = false;
  undo_.take_back([&](c10::StorageImpl* storage, UndoLog::Entry& before) {
    const StoragePtr held = torch_versions::hold(storage);
    if (!held) return;  // no tensor looks into it any more
    state_.lock.let_go_after(held);
    Value* now = value_in(storage);
    if (now != nullptr && !now->resident())
      return graph_.hold_on_host(*storage, *now, std::exchange(before.host, nullptr));
    if (now != nullptr && !now->known_outside) graph_.take_off(*now);
    state_.device.put_back(storage->_mutable_data_ptr_no_checks().get(), before.host, before.bytes);
  });
}

}  // namespace stowage::runtime::evict
