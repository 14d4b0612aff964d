// fork(): the child has what its parent had, one thread, and no limit. What is away comes back when it is used.
//
//   parent   lock ── copies finish ── fork ── unlock        the thread that forks holds the lock meanwhile, so that the
//   child                              └───── new locks     child finds notes that nobody was in the middle of
#include <pthread.h>

#include <new>
#include <utility>

#include "runtime/evict/budget.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/homes.h"
#include "runtime/torch/hook.h"

namespace stowage::runtime::evict {
namespace {

thread_local Budget* tl_forking = nullptr;

void fork_begins() {
  tl_forking = active_budget();
  if (tl_forking != nullptr) tl_forking->before_fork();
}

void fork_ended(bool in_child) {
  if (Budget* budget = std::exchange(tl_forking, nullptr)) budget->after_fork(in_child);
}

}  // namespace

void watch_forks() {
  homes_survive_forks();
  static const int registered = pthread_atfork(&fork_begins, [] { fork_ended(false); }, [] { fork_ended(true); });
  (void)registered;
}

// No copy is under way when the child begins: the threads that make them are not there.
void Budget::before_fork() {
  state_.lock.lock();
  ahead_.finish_all();
}

void Budget::after_fork(bool in_child) {
  if (!in_child) return state_.lock.unlock();
  new (&state_.lock) StateLock;  // those of before are their threads'
  new (&state_.restoring) RestoringLock(state_.lock);
  graph_.after_fork();
  in_child_ = true;
  state_.running = nullptr;
  state_.home = std::this_thread::get_id();
  awake_.after_fork();
  state_.limit_bytes = std::numeric_limits<std::int64_t>::max();
  state_.set_limit(state_.limit_bytes);
  attach_thread(!awake_.asleep());
}

}  // namespace stowage::runtime::evict
