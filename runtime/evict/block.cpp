// Entering and leaving the block, and what its face asks for.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "runtime/evict/budget.h"
#include "runtime/evict/now.h"
#include "runtime/torch/torch_versions.h"
#include "stowage/error.h"

namespace stowage::runtime::evict {
namespace {

std::atomic<Budget*> g_active{nullptr};

// The thread that forks holds the lock meanwhile, so that the child finds notes that nobody was in the middle of.
thread_local Budget* tl_forking = nullptr;

void fork_begins() {
  tl_forking = active_budget();
  if (tl_forking != nullptr) tl_forking->before_fork();
}

void fork_ended(bool in_child) {
  if (Budget* budget = std::exchange(tl_forking, nullptr)) budget->after_fork(in_child);
}

stowage::eager::Options table_options(const BudgetOptions& options) {
  stowage::eager::Options of_table;
  of_table.policy = options.policy;
  of_table.release = options.release;
  of_table.prefetch = options.prefetch;
  of_table.limit_bytes = options.limit_bytes;
  of_table.seed = options.seed;
  if (options.link_gbps > 0) of_table.link_bytes_per_ns = options.link_gbps;
  return of_table;
}

}  // namespace

Budget* active_budget() { return g_active.load(std::memory_order_relaxed); }

Budget::Budget(const BudgetOptions& options)
    : Graph(table_options(options)),
      options_(options),
      heap_(std::make_shared<HostHeap>(options.host_limit_bytes)),
      link_(threaded_link(heap_, options.link_gbps)),
      keeper_(table) {}

Budget::~Budget() {
  if (active_) leave();
}

void Budget::enter(std::int64_t limit_bytes) {
  static const int registered = pthread_atfork(&fork_begins, [] { fork_ended(false); }, [] { fork_ended(true); });
  (void)registered;
  if (Budget* parents = active_budget(); parents != nullptr && parents->in_child_) parents->leave();
  Budget* none = nullptr;
  if (!g_active.compare_exchange_strong(none, this)) {
    throw Error(
        "another stowage.budget is active in this process; the limit counts all of the process's tensors, so there is "
        "one at a time");
  }
  active_ = true;
  lost_.clear();
  home_ = std::this_thread::get_id();
  if (entered_ns_ == 0) entered_ns_ = now_ns();
  stats_.short_bytes = 0;
  stats_.peak_bytes = 0;
  updates_under_way_ = 0;
  settling_ = others_ = home_away_ = false;
  options_.limit_bytes = limit_bytes;
  table.set_limit(limit_bytes);
  reset_peak();
  current_limit_ = std::max(limit_bytes, live_bytes());  // until shrink()
  set_guardian(this, current_limit_);
  set_shared_interceptor(this);
  attach_thread(!asleep_);
}

void Budget::attach_this_thread() {
  {
    const std::lock_guard lock(state_);
    if (!at_home()) {
      others_ = true;
      if (asleep_) wake();
    }
  }
  attach_thread(true);
}
void Budget::detach_this_thread() { attach_thread(false); }

void Budget::adopt(const at::Tensor& tensor) {
  const std::lock_guard lock(state_);
  if (storage_of(tensor) != nullptr && value_in(storage_of(tensor)) == nullptr) meet(tensor, nullptr, false);
}

void Budget::shrink() {
  const std::lock_guard lock(state_);
  current_limit_ = options_.limit_bytes;
  set_limit(current_limit_);
  while (live_bytes() > current_limit_) {
    if (let_go_of_one()) continue;
    stats_.short_bytes = live_bytes() - current_limit_;
    TORCH_CHECK_WITH(OutOfMemoryError, false, explain(0));
  }
  reset_peak();
  stats_.peak_bytes = 0;
  if (asleep_) set_limit(waking_bytes());  // wakes at once where more is live already
}

// Nothing may hold the program back here: an exception on its way out, memory that is short. So there is no limit any
// more, and what cannot be brought back is named, after all the rest is back.
std::string Budget::leave() {
  if (!active_) return lost_;
  set_shared_interceptor(nullptr);
  attach_thread(false);
  {
    const std::lock_guard lock(state_);
    stats_.peak_bytes = std::max(stats_.peak_bytes, peak_bytes());
    current_limit_ = std::numeric_limits<std::int64_t>::max();
    set_limit(current_limit_);
  }
  const std::vector<StoragePtr> held = hold_storages_away();
  const std::lock_guard one_at_a_time(restoring_);
  lost_ = bring_all_back();
  {
    std::unique_lock lock(state_);
    raise_peak(stats_.peak_bytes);  // which was counted anew from step to step
    const BudgetStats final_stats = stats_;
    release_all(/*known_outside=*/true);
    told_.wait(lock, [this] { return untold_ == 0; });
    stats_ = final_stats;
    set_guardian(nullptr, 0);
    active_ = false;
    g_active.store(nullptr);
    heap_->trim();
  }
  return lost_;
}

// Every value ends here. Storages keep their blocks; one whose content is lost stays without, and says so when it is
// read.
void Budget::release_all(bool known_outside) {
  forget_undo();
  held_back_.clear();
  if (known_outside) holds_.clear();  // whoever reads now reads what stays
  while (!table.going_out().empty()) finish_out(*rows_[table.going_out().back()]);
  std::vector<Ref<Value>> all;
  for (Value* value : values()) {
    if (known_outside || !value->known_outside) all.emplace_back(value);
  }
  for (const Ref<Value>& value : all) {
    lose_recipe(*value);
    if (value->storage != nullptr) part(*value);
  }
}

void Budget::part(Value& value) {
  c10::StorageImpl* storage = value.storage;
  const StoragePtr held = torch_versions::hold(storage);
  if (held) state_.let_go_after(held);
  if (!held && !value.resident()) return bury_if_dead(value);
  if (value_in(storage) != &value) return;            // it is dying in another thread, which parts them
  const Ref<Value> self = Ref<Value>::adopt(&value);  // the storage's reference
  c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (value.resident()) {
    *block_mark(data.get_context(), data.get_deleter()) = nullptr;
    unwatch(*storage);
  } else {
    data.release_context();
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_("stowage: " + value.name() +
                                                                  " was lost when its budget ended");
  }
  value.moves_out();
}

// The tensor's value, which is there now, pinned; none where there is nothing that could leave. Once the lock is free
// another thread may write to it, so that it has another value.
Budget::Values Budget::brought(const at::Tensor& tensor, bool small_too) {
  c10::StorageImpl* storage = storage_of(tensor);
  Values one;
  if (storage == nullptr || !active_) return one;
  {
    const std::lock_guard lock(state_);
    Value* value = value_in(storage);
    if (value == nullptr) value = meet(tensor, nullptr, false);
    if (value == nullptr || (value->small() && !small_too)) return one;
    one.push_back(Ref<Value>(value));
  }
  try {
    bring(one, 0);
  } catch (...) {
    const std::lock_guard lock(state_);
    one.clear();
    throw;
  }
  return one;
}

void Budget::restore(const at::Tensor& tensor) {
  for (bool touched = false; !touched;) {
    Values one = brought(tensor, /*small_too=*/true);
    if (one.empty()) return;
    const std::lock_guard lock(state_);
    touched = value_in(storage_of(tensor)) == one.front().get();
    if (touched) touched_outside(storage_of(tensor));
    unpin(one);
    one.clear();
  }
}

std::int64_t Budget::hold(const at::Tensor& tensor) {
  Values one = brought(tensor, /*small_too=*/false);
  if (one.empty()) return 0;
  const std::lock_guard lock(state_);
  holds_.emplace(++last_hold_, std::move(one));
  return last_hold_;
}

void Budget::release(std::int64_t number) {
  const std::lock_guard lock(state_);
  const auto held = holds_.find(number);
  if (held == holds_.end()) return;
  unpin(held->second);
  holds_.erase(held);
}

// Somebody has the address, may write through it, and may keep it: what the storage held so far is a value of the past,
// and what it holds from now on never leaves and is nobody's operand for a recipe.
void Budget::touched_outside(c10::StorageImpl* storage) {
  const std::lock_guard lock(state_);
  Value* value = value_in(storage);
  if (value == nullptr || value->known_outside || !value->resident()) return;
  const Ref<Value> past(value);
  take_off(*value);
  void** mark = block_mark(storage->_mutable_data_ptr_no_checks().get_context(),
                           storage->_mutable_data_ptr_no_checks().get_deleter());
  Ref<Value> now(new Value(*this));
  now->moves_into(storage);
  now->origin = past->origin;
  now->made = past->made;
  now->known_outside = true;
  if (past->small()) {
    now->small_bytes = past->small_bytes;
  } else {
    note_row(*now, past->bytes(), /*evictable=*/false);
  }
  *mark = now.release();
}

std::string Budget::evict(const at::Tensor& tensor, stowage::eager::How how) {
  c10::StorageImpl* storage = storage_of(tensor);
  TORCH_CHECK(storage != nullptr && active_, "evict() takes a tensor with memory, inside the block");
  const std::lock_guard lock(state_);
  pin_running();
  Value* value = value_in(storage);
  if (value == nullptr) value = meet(tensor, nullptr, false);
  if (value == nullptr || value->small() || value->pins() > 0 || !value->resident()) return describe(tensor);
  if (!table[value->id].evictable) return describe(tensor);
  let_go(*value, how);
  return describe(tensor);
}

std::string Budget::describe(const at::Tensor& tensor) {
  const std::lock_guard lock(state_);
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

BudgetStats Budget::stats() const {
  const std::lock_guard lock(state_);
  BudgetStats stats = stats_;
  if (active_) stats.peak_bytes = std::max(stats.peak_bytes, peak_bytes());
  return stats;
}

stowage::eager::Counters Budget::counters() const {
  const std::lock_guard lock(state_);
  return table.counters;
}

std::vector<Event> Budget::timeline() const {
  const std::lock_guard lock(state_);
  return timeline_.events();
}

BudgetHoldings Budget::holdings() const {
  const std::lock_guard lock(state_);
  return {static_cast<std::int64_t>(size()), recipes, static_cast<std::int64_t>(table.in_use()), heap_->used_bytes(),
          heap_->peak_bytes()};
}

// No copy is under way when the child begins: the threads that make them are not there.
void Budget::before_fork() {
  state_.lock();
  while (!table.coming_in().empty()) finish_fetch(*rows_[table.coming_in().back()], false);
  while (!table.going_out().empty()) finish_out(*rows_[table.going_out().back()]);
}

// The child has what its parent had, one thread, and no limit. What is away comes back when it is used.
void Budget::after_fork(bool in_child) {
  if (!in_child) return state_.unlock();
  new (&state_) StateLock;  // those of before are their threads'
  new (&restoring_) RestoringLock(state_);
  new (&told_) std::condition_variable_any;
  untold_ = 0;
  in_child_ = true;
  running_ = nullptr;
  home_ = std::this_thread::get_id();
  others_ = home_away_ = settling_ = false;
  end_holding_back();
  current_limit_ = std::numeric_limits<std::int64_t>::max();
  set_limit(current_limit_);
  attach_thread(!asleep_);
}

}  // namespace stowage::runtime::evict
