#include "runtime/evict/budget.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>

#include "runtime/evict/block.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/link.h"
#include "runtime/memory/owners.h"
#include "runtime/torch/generator.h"
#include "runtime/torch/hook.h"
#include "stowage/error.h"

namespace stowage::runtime::evict {
namespace {

std::atomic<Budget*> g_active{nullptr};

// What each lane of a device's link moves: measured once in a process where there is room, and only where nobody has said
// it. On the host, copies are as fast as memory is.
double link_gbps(c10::Device where, std::int64_t limit_bytes) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, double> known;  // of the one kind of accelerator that a process has
  const std::lock_guard lock(mutex);
  const auto it = known.find(where.index());
  if (it != known.end()) return it->second;
  Device& device = device_at(where);
  device.install();
  const std::shared_ptr<HostStore> store = device.host_store(0);
  const std::int64_t room_bytes = limit_bytes - live_bytes(where);
  const double gbps = measure_gbps(*store, *device.link(store), device, room_bytes);
  if (gbps > 0 && room_bytes >= kTrialBytes) known.emplace(where.index(), gbps);
  return gbps;
}

BudgetOptions with_link(BudgetOptions options) {
  if (!options.where.is_cpu() && options.link_gbps <= 0)
    options.link_gbps = link_gbps(options.where, options.limit_bytes);
  return options;
}

}  // namespace

Budget::Budget(const BudgetOptions& options) : state_(with_link(options)) {}

Budget* active_budget() { return g_active.load(std::memory_order_relaxed); }

Budget::~Budget() {
  if (active()) leave();
}

void Budget::enter(std::int64_t limit_bytes) {
  owners::survive_forks();
  watch_forks();
  if (Budget* parents = active_budget(); parents != nullptr && parents->in_child_) parents->leave();
  Budget* none = nullptr;
  if (!g_active.compare_exchange_strong(none, this)) {
    throw Error(
        "another stowage.budget is active in this process; the limit counts all of the process's tensors, so there is "
        "one at a time");
  }
  try {
    settle();
  } catch (...) {
    g_active.store(nullptr);
    throw;
  }
  if (state_.options.lines.now != nullptr) owners::begin(state_.options.lines, state_.options.where);
  state_.active = true;
  lost_.clear();
  state_.home = std::this_thread::get_id();
  if (state_.entered_ns == 0) state_.entered_ns = now_ns();
  state_.stats.short_bytes = 0;
  state_.stats.peak_bytes = 0;
  updates_.enters();
  awake_.enters();
  state_.options.limit_bytes = limit_bytes;
  state_.table.set_limit(limit_bytes);
  state_.reset_peak();
  state_.limit_bytes = std::max(limit_bytes, state_.live_bytes());  // until shrink()
  set_guardian(&room_, state_.limit_bytes, state_.options.where);
  set_shared_interceptor(&ops_);
  attach_thread(!awake_.asleep());
}

// On the device whose bytes are limited.
void Budget::settle() {
  set_budget_device(state_.options.where);
  state_.device.install();
  state_.device.count_others();
  state_.home_stream = state_.device.current_stream();
  if (!state_.on_host()) watch_generator(state_.options.where);
}

void Budget::detach_this_thread() { attach_thread(false); }

void Budget::adopt(const at::Tensor& tensor) {
  const std::lock_guard lock(state_.lock);
  if (storage_of(tensor) != nullptr && value_in(storage_of(tensor)) == nullptr) graph_.meet(tensor, nullptr, false);
}

void Budget::shrink() {
  const owners::Unasked ours;
  const std::lock_guard lock(state_.lock);
  state_.limit_bytes = state_.options.limit_bytes;
  state_.set_limit(state_.limit_bytes);
  room_.shrink();
  state_.reset_peak();
  state_.stats.peak_bytes = 0;
  if (awake_.asleep()) state_.set_limit(awake_.waking_bytes());  // wakes at once where more is live already
}

// Nothing may hold the program back here: an exception on its way out, memory that is short. So the limit gives way where
// it must, and what cannot be brought back is named, after all the rest is back.
std::string Budget::leave(const std::vector<at::Tensor>& may_stay) {
  if (!active()) return lost_;
  set_shared_interceptor(nullptr);
  attach_thread(false);
  if (!may_stay.empty()) {
    std::unordered_set<const c10::StorageImpl*> storages;
    for (const at::Tensor& tensor : may_stay) storages.insert(storage_of(tensor));
    try {
      restorer_.leave_at_home(storages);
    } catch (const std::exception&) {  // then it comes back
    }
  }
  {
    const std::lock_guard lock(state_.lock);
    state_.stats.peak_bytes = std::max(state_.stats.peak_bytes, state_.peak_bytes());
  }
  const std::vector<StoragePtr> held = restorer_.hold_storages_away();
  const std::lock_guard one_at_a_time(state_.restoring);
  lost_ = restorer_.bring_all_back(AllBack::kWidens);
  {
    std::unique_lock lock(state_.lock);
    state_.limit_bytes = std::numeric_limits<std::int64_t>::max();
    state_.set_limit(state_.limit_bytes);
    raise_peak(state_.stats.peak_bytes, state_.options.where);  // which was counted anew from step to step
    const BudgetStats final_stats = state_.stats;
    outside_.release_all();
    graph_.release_all(/*known_outside_too=*/true);
    graph_.wait_for_burials(lock);
    state_.stats = final_stats;
    set_guardian(nullptr, 0, state_.options.where);
    state_.active = false;
    g_active.store(nullptr);
    if (state_.options.lines.now != nullptr) owners::end();
    copies_.heap().trim();
  }
  return lost_;
}

BudgetStats Budget::stats() const {
  const std::lock_guard lock(state_.lock);
  BudgetStats stats = state_.stats;
  if (active()) stats.peak_bytes = std::max(stats.peak_bytes, state_.peak_bytes());
  return stats;
}

stowage::eager::Counters Budget::counters() const {
  const std::lock_guard lock(state_.lock);
  return state_.table.counters;
}

std::vector<Event> Budget::timeline() const {
  const std::lock_guard lock(state_.lock);
  return state_.timeline.events();
}

BudgetHoldings Budget::holdings() const {
  const std::lock_guard lock(state_.lock);
  return {static_cast<std::int64_t>(state_.values.size()), graph_.recipes,
          static_cast<std::int64_t>(state_.table.in_use()), copies_.heap().used_bytes(), copies_.heap().peak_bytes()};
}

}  // namespace stowage::runtime::evict
