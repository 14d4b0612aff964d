// A byte limit around any program: the hook sees every op, the allocator asks for room, and values leave and come back.
//
//   Ops: an op as the program runs it ──────────────┐           Updates: an optimizer's step ── Sleep
//    │ its operands must be there                   │ room             │ is taken back
//    ▼                                              ▼                  ▼
//   Restorer ── Recompute: recipes ──────────────▶ Room ──let go──▶ Graph: the lives of values ── UndoLog
//    └───────── Ahead: copies beside the kernels ───▲                  │ Awake: whether ops are seen
//   Outside: reads past the dispatcher ─────────────┘                  ▼
//                                       HostCopies, blocks ──▶ State: the one table of values, the limit, the locks
//
// Each part has a file, and knows those that its arrows lead to. The limit is hard because letting go never runs a
// kernel. Only bringing back does, and that is over before the op starts; whatever an op allocates inside is met by
// letting go of what it does not use. Differs from DELTA (arXiv 2203.15980): values instead of storages, so in-place
// ops and mutated parameters are exact; the limit is kept inside the allocator; prefetching is real.
//
// One budget at a time in a process. A child made by fork() has it without a limit, so that what was away when it was
// made comes back when it is used (fork.cpp).
#pragma once

#include <string>
#include <vector>

#include "runtime/evict/ops.h"

namespace stowage::runtime::evict {

// What the runtime holds now.
struct BudgetHoldings {
  std::int64_t values = 0, recipes = 0, keeper_values = 0, host_bytes = 0, host_peak_bytes = 0;
};

class Budget {
 public:
  explicit Budget(const BudgetOptions& options);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // From here on the limit holds, and this thread's ops are seen. Throws when another budget is active. Once it has
  // been left it may be entered again, with another limit: what it has learnt of the program, and that it may sleep, is
  // kept.
  void enter(std::int64_t limit_bytes);
  // What is live and known by then is within the limit, or this throws.
  void adopt(const at::Tensor& tensor);
  void shrink();
  // Brings everything back, within no limit, and lets go of all values. Returns "" or what could not be brought back;
  // so it does when it is called again. `may_stay`: where not all fits within the limit, these may stay in the
  // host's file, mapped as their memory.
  std::string leave(const std::vector<at::Tensor>& may_stay = {});
  // The calling thread's ops are seen (the entering thread's are anyway).
  void attach_this_thread() { awake_.attach_this_thread(); }
  static void detach_this_thread();
  // The calling thread's ops are seen from its first one on; a thread that has none costs nothing.
  static void expect_this_thread() { Awake::expect_this_thread(); }
  // Around a fork, by the thread that forks.
  void before_fork();
  void after_fork(bool in_child);
  [[nodiscard]] bool active() const { return state_.active; }

  [[nodiscard]] Updates& updates() { return updates_; }
  [[nodiscard]] Outside& outside() { return outside_; }
  void evicted_storage_dies(Value* value) noexcept { graph_.evicted_storage_dies(value); }

  [[nodiscard]] BudgetStats stats() const;
  [[nodiscard]] stowage::eager::Counters counters() const;
  [[nodiscard]] std::vector<Event> timeline() const;
  [[nodiscard]] BudgetHoldings holdings() const;

 private:
  void settle();

  State state_;
  HostCopies copies_{state_};
  Awake awake_{state_};
  UndoLog undo_{state_, copies_.heap()};
  Graph graph_{state_, copies_, undo_, awake_};
  Room room_{state_, copies_, awake_, graph_};
  Ahead ahead_{state_, copies_, graph_, room_};
  Restorer restorer_{state_, copies_, graph_, room_, ahead_};
  Sleep sleep_{state_, awake_, graph_, restorer_};
  Updates updates_{state_, awake_, undo_, graph_, sleep_};
  Outside outside_{state_, graph_, room_, restorer_};
  Ops ops_{state_, awake_, graph_, ahead_, restorer_, updates_, outside_};
  std::string lost_;       // what the latest leave() could not bring back
  bool in_child_ = false;  // of the process that entered it
};

// The one that is active, if any.
Budget* active_budget();

// From now on it is told of forks. Idempotent (fork.cpp).
void watch_forks();

}  // namespace stowage::runtime::evict
