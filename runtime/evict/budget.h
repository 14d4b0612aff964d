// A byte limit around any program: the hook sees every op, the allocator asks for room, and values leave and come back.
//
//   op ──► bring its operands back ──► run ──► note its results and how to make them again ──► advice: fetch, copy out early
//                                       │
//                                   allocate ── would pass the limit ──► keeper names a victim: drop it, or copy it out and drop it
//
// The limit is hard because letting go never runs a kernel: a drop is a free, a swap a copy. Only bringing back does,
// and that is over before the op starts; whatever an op allocates inside is met by letting go of what it does not use.
// See eager_budget in the background notes of the design for what was measured. Differs from DELTA (arXiv 2203.15980):
// values instead of storages, so in-place ops and mutated parameters are exact; the limit is kept inside the allocator;
// prefetching is real.
//
// Locks: restoring_ (one thread brings back at a time; kernels run under it), then state_ (the graph, the keeper,
// blocks; no kernel and no Python under it: state_lock.h). One budget at a time in a process. A child made by fork()
// has it without a limit, so that what was away when it was made comes back when it is used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "runtime/evict/call.h"
#include "runtime/evict/host_heap.h"
#include "runtime/evict/state_lock.h"
#include "runtime/evict/timeline.h"
#include "runtime/evict/value.h"
#include "runtime/memory/allocator.h"
#include "runtime/torch/hook.h"
#include "stowage/eager.h"

namespace stowage::runtime::evict {

struct BudgetOptions {
  std::int64_t limit_bytes = 0;
  std::string policy = "default";
  stowage::eager::Release release = stowage::eager::Release::kBoth;
  double link_gbps = 0;  // 0: as fast as memory is
  bool prefetch = true;
  bool poison = false;           // fill memory that is let go, so that a stale read shows
  bool replay_generator = true;  // false: only for tests that must fail
  std::int64_t host_limit_bytes = 0;
  std::uint64_t seed = 0;
};

struct BudgetStats {
  std::int64_t peak_bytes = 0;
  std::int64_t ops = 0;
  std::int64_t drops = 0, swaps_out = 0, swaps_in = 0, recomputed_ops = 0, snapshots = 0, lost_recipes = 0,
               split_ops = 0;
  std::int64_t swapped_bytes = 0;  // moved to the host
  std::int64_t swapped_in_bytes = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t stall_ns = 0;  // the program waited for copies
  std::int64_t evict_ns = 0;  // choosing and letting go, copies that were waited for included
  std::int64_t out_of_memory = 0;
  std::int64_t short_bytes = 0;  // the most that was missing then
  std::int64_t deepest_recompute = 0;
  std::int64_t notes_lost = 0;  // ops whose results are unknown, as there was no memory for notes
};

// What the runtime holds now.
struct BudgetHoldings {
  std::int64_t values = 0, recipes = 0, keeper_values = 0, host_bytes = 0, host_peak_bytes = 0;
};

class Budget final : public Interceptor, public Guardian, public Graph {
 public:
  explicit Budget(const BudgetOptions& options);
  ~Budget() override;

  // From here on the limit holds, and this thread's ops are seen. Throws when another budget is active. Once it has
  // been left it may be entered again, with another limit: what it has learnt of the program, and that it may sleep, is
  // kept.
  void enter(std::int64_t limit_bytes);
  // What is live and known by then is within the limit, or this throws.
  void adopt(const at::Tensor& tensor);
  void shrink();
  // Brings everything back, within no limit, and lets go of all values. Returns "" or what could not be brought back;
  // so it does when it is called again.
  std::string leave();
  // The calling thread's ops are seen (the entering thread's are anyway).
  void attach_this_thread();
  static void detach_this_thread();
  // Around a fork, by the thread that forks.
  void before_fork();
  void after_fork(bool in_child);
  [[nodiscard]] bool active() const { return active_; }

  // Between the two, an op that does not fit takes back all that was written.
  void begin_update(std::uint64_t optimizer);
  void end_update();

  // Past the dispatcher: the tensor's bytes are there when this returns, and stay: for good, or until release() of the
  // number returned (0: nothing need be done).
  void restore(const at::Tensor& tensor);
  std::int64_t hold(const at::Tensor& tensor);
  void release(std::int64_t number);
  // Lets go of a tensor now, if that is possible; for tests. "kept", "dropped" or "swapped".
  std::string evict(const at::Tensor& tensor, stowage::eager::How how);
  [[nodiscard]] std::string describe(const at::Tensor& tensor);

  [[nodiscard]] BudgetStats stats() const;
  [[nodiscard]] stowage::eager::Counters counters() const;
  [[nodiscard]] std::vector<Event> timeline() const;
  [[nodiscard]] BudgetHoldings holdings() const;

  void on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;
  void make_room(std::int64_t bytes) override;
  bool block_dies(void* data, void* mark) noexcept override;
  void evicted_storage_dies(Value* value) noexcept;
  void touched_outside(c10::StorageImpl* storage);

 protected:
  void value_dies(Value& value) override;
  void recipe_lost(Value& value) override;

 private:
  using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
  using Values = c10::SmallVector<Ref<Value>, 8>;
  // A tensor that the op under way writes to.
  struct Written {
    at::Tensor tensor;
    StoragePtr storage;  // as it was before
    std::int32_t operand = 0;
    std::int16_t in_place_depth = 0;
    bool contended = false;
  };
  using WrittenTensors = c10::SmallVector<Written, 2>;

  // An op under way, with the lock, and what it uses: not to be let go.
  struct Running {
    Running(Budget& budget, const OpTraits& op);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    Budget& budget;
    std::unique_lock<StateLock> lock;
    const OpTraits* op = nullptr;
    Values values;
    WrittenTensors written;
    c10::SmallVector<StoragePtr, 1> moved_on;  // that held some of `values`, until an op wrote to them
    Ref<Recipe> recipe;
    bool ready = false;   // all are there
    bool pinned = false;  // with the keeper: done when a victim is looked for
    Running* next = nullptr;
  };

  static constexpr std::int16_t kDeepestInPlace = 16;  // then the content counts as given
  static constexpr int kDeepestGhost = 32;
  static constexpr int kDeepestRecompute = 400;
  static constexpr int kMostAdvice = 16;  // after one op
  static constexpr int kMostQuietUpdates = 64;

  // budget.cpp: ops as the program runs them
  void run(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool run_split(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack);
  void bring_operands(const OpTraits& op, Operands& operands, Running& running);
  bool find_values(const OpTraits& op, Operands& operands, Running& running);
  void tell_readers(Value& value);
  void note_writes(Operands& operands, Running& running, bool undoing);
  void begin_op(const OpTraits& op, const Operands& operands);
  void overwrite(const OpTraits& op, const Operands& operands, const torch::jit::Stack& stack, bool& rememberable);
  void take_notes(const OpTraits& op, const torch::jit::Stack& stack, Running& running, std::int64_t took_ns);
  void note_results(const OpTraits& op, const torch::jit::Stack& stack, const WrittenTensors& written,
                    const Ref<Recipe>& recipe, std::int64_t took_ns);
  static bool complete(const Recipe& recipe);
  void give_recipe(Value& value, const Ref<Recipe>& recipe, std::int32_t position, std::int64_t took_ns);
  static bool worth_remembering();
  static bool all_small_in_place(const OpTraits& op, const Operands& operands);
  static bool only_overwritten(const Operands& operands, const Value* value);
  static std::int16_t in_place_depth(const Operand& operand);

  // undo.cpp: optimizer steps that do not fit
  struct Undo {
    void* host = nullptr;
    std::int64_t bytes = 0;
    at::Tensor small;
  };
  bool still_updating();
  void save_for_undo(const Written& written);
  void forget_undo(c10::StorageImpl* storage);
  void forget_undo();
  void roll_back();
  void hold_on_host(c10::StorageImpl& storage, Value& now, void* host);

  // sleep.cpp
  [[nodiscard]] bool may_sleep();
  void sleep();
  void home_is_back(bool inside_op);
  void end_holding_back();
  [[nodiscard]] std::int64_t waking_bytes() const { return options_.limit_bytes / 100 * 65; }
  void wake();
  bool inside_unwatched_op();
  [[nodiscard]] bool at_home() const { return std::this_thread::get_id() == home_; }

  // lives.cpp: from the first meeting to the end
  Value* value_in(c10::StorageImpl* storage) const;
  Value* meet(const at::Tensor& tensor, const OpTraits* origin, bool made);
  void take_off(Value& value);
  bool must_be_kept(Value& value);
  void give_up(Value& value);
  void keep_small(Value& value, const void* data);
  static int ghost_depth(const Recipe& recipe);
  static bool there(const Value& value) { return value.small() || value.resident(); }
  static bool at_hand(const Value& value);
  void storage_died(Value& value);
  void bury_if_dead(Value& value);
  void note_row(Value& value, std::int64_t bytes, bool evictable);

  // block.cpp: leaving
  Values brought(const at::Tensor& tensor, bool small_too);
  void release_all(bool known_outside);
  void part(Value& value);

  // evict.cpp: letting go
  bool let_go_of_one();
  bool let_go(Value& value, stowage::eager::How how);
  c10::DataPtr take_block(Value& value);
  bool copy_out(Value& value, const void* data);
  void finish_out(Value& value);
  void drop_host_copy(Value& value);
  void pin_running();
  void pin(const Values& values);
  void unpin(const Values& values);
  [[nodiscard]] std::string explain(std::int64_t bytes) const;

  // restore.cpp: bringing back
  void bring(const Values& values, int depth);
  void bring_one_by_one(const Values& values, int depth);
  void soft_pin(const Values& values, bool on);
  void start_fetches(const Values& values);
  bool pin_if_all_there(const Values& values);
  [[nodiscard]] std::int64_t swapped_bytes(const Value& value) const;
  void restore_value(Value& value, int depth);
  bool restore_once(Value& value, int depth);
  std::string bring_all_back();
  std::vector<StoragePtr> hold_storages_away();
  bool fetch_back(Value& value, std::int64_t bytes);
  bool put(Value& value, c10::DataPtr& block);
  bool start_fetch(Value& value);
  void start_fetch(Value& value, c10::DataPtr block);
  void finish_fetch(Value& value, bool waited_for);
  void cancel_fetch(Value& value);
  bool start_copy_out(Value& value);
  void poll_copies();
  void follow_advice();

  // replay.cpp: running a recipe
  void recompute(Value& value, int depth);
  static Values operands_of(const Recipe& recipe);
  std::vector<StoragePtr> storages_for(const Recipe& recipe, const Values& operands, Values& read);
  StoragePtr storage_with(Value& value, bool to_be_written, Values& read);
  void end_reading(Values& read);
  const void* bytes_of(Value& value);
  void keep_on_host(Value& value, const void* data);
  static torch::jit::Stack stack_for(const Recipe& recipe, const std::vector<StoragePtr>& storages);
  void run_recipe(const Recipe& recipe, torch::jit::Stack& stack);
  void take_results(Recipe& recipe, const torch::jit::Stack& stack, const std::vector<StoragePtr>& storages,
                    Value& wanted, std::int64_t took_ns);

  void record(Event::Kind kind, std::int64_t bytes, const OpTraits* op);

  BudgetOptions options_;
  std::shared_ptr<HostHeap> heap_;
  std::unique_ptr<Link> link_;
  mutable StateLock state_;
  mutable RestoringLock restoring_{state_};
  std::condition_variable_any told_;
  int untold_ = 0;  // storages found dead whose threads have yet to say so
  stowage::eager::Keeper keeper_;
  IdVector<ValueId, Value*> rows_;
  Running* running_ = nullptr;
  BudgetStats stats_;
  Timeline timeline_;
  std::int64_t entered_ns_ = 0;
  std::int64_t current_limit_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t work_left_ = 0;  // recomputations for the access under way
  int updates_under_way_ = 0;
  bool undoing_ = false;
  std::uint64_t updating_ = 0;
  std::int64_t fixed_bytes_ = 0;                                  // that could not leave when the update began
  std::unordered_map<std::uint64_t, std::int64_t> went_through_;  // by optimizer: the most of them so far
  std::unordered_map<c10::StorageImpl*, Undo> undo_;
  std::string lost_;      // what the latest leave() could not bring back
  std::thread::id home_;  // that entered
  std::atomic<bool> asleep_{false};
  std::atomic<bool> settling_{false};
  std::atomic<bool> others_{false};                 // threads that are not home have been attached
  std::atomic<bool> home_away_{false};              // the hook is off there although the budget is awake
  std::unordered_map<std::int64_t, Values> holds_;  // by number: pinned
  std::int64_t last_hold_ = 0;
  std::vector<Ref<Value>> held_back_;  // not evictable until no op of home's goes unwatched
  int quiet_updates_ = 0;              // one after the other, far from the limit
  int quiet_enough_ = 2;               // to sleep; twice as many after each time that it was woken
  bool in_child_ = false;              // of the process that entered it
  std::atomic<bool> active_{false};
};

// The one that is active, if any.
Budget* active_budget();

// Marks the data pointer of an evicted storage, whose context is the value.
c10::DeleterFnPtr evicted_deleter();

// Nanoseconds that the calling thread has spent making room, inside ops.
std::int64_t waited_ns();

c10::intrusive_ptr<c10::StorageImpl> bare_storage(c10::DataPtr block, std::int64_t bytes);

// A pointer that leaves a resident storage other than to a kernel is noticed (outside.cpp).
void watch(c10::StorageImpl& storage);
void unwatch(c10::StorageImpl& storage);
struct InKernel {
  InKernel();
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

}  // namespace stowage::runtime::evict
