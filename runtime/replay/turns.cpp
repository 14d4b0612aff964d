#include "runtime/replay/turns.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string>

#include "stowage/error.h"

namespace stowage::runtime {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // for signals

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int together = 0;  // threads, each counted once
  int waiting = 0;   // for a turn alone
  bool somebody_alone = false;
};

// Never destroyed: threads may outlive main().
State& state() {
  static auto* const made = new State;
  return *made;
}

thread_local int tl_together = 0;  // turns of this thread
thread_local int tl_alone = 0;

void child_begins() {
  State& s = state();
  new (&s) State;
  s.together = tl_together > 0 && tl_alone == 0 ? 1 : 0;
  s.somebody_alone = tl_alone > 0;
}

// The lock is held again however it ends.
template <class Condition>
void wait_until(std::unique_lock<std::mutex>& lock, double longest_s, void (*waits)(), Condition condition) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (!state().changed.wait_for(lock, kLook, condition)) {
    lock.unlock();
    try {
      waits();
    } catch (...) {
      lock.lock();
      throw;
    }
    lock.lock();
    if (Clock::now() - start > std::chrono::duration<double>(longest_s)) {
      throw Error("a call of another thread has not come to its end for " +
                  std::to_string(static_cast<std::int64_t>(longest_s)) +
                  " s, and this one must wait for it, as it is of the same step, or one of them runs within a byte "
                  "limit: where that call waits "
                  "for this thread, neither can go on; nothing of this call has happened");
    }
  }
}

}  // namespace

// What a thread holds counts once: as together, or as alone while any of its turns is.
void Turn::begin(void (*waits)()) {
  static const int registered = pthread_atfork(nullptr, nullptr, &child_begins);
  (void)registered;
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (gate_ != nullptr) {
    const void* const me = &tl_together;
    wait_until(lock, longest_s_, waits, [&] { return gate_->depth_ == 0 || gate_->thread_ == me; });
    gate_->thread_ = me;
    ++gate_->depth_;
    through_ = true;
  }
  if (tl_together == 0) {
    try {
      wait_until(lock, longest_s_, waits, [&] { return !s.somebody_alone && s.waiting == 0; });
    } catch (...) {
      leave_gate();
      throw;
    }
    ++s.together;
  }
  ++tl_together;
  together_ = true;
}

void Turn::leave_gate() {
  if (through_ && --gate_->depth_ == 0) state().changed.notify_all();
  through_ = false;
}

bool Turn::alone(void (*waits)()) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (alone_) return false;
  if (tl_alone > 0) {
    alone_ = true;
    ++tl_alone;
    return false;
  }
  if (tl_together > 0) --s.together;
  ++s.waiting;
  s.changed.notify_all();
  const auto nobody = [&] { return !s.somebody_alone && s.together == 0; };
  try {
    wait_until(lock, longest_s_, waits, nobody);
  } catch (...) {  // between two turns: this thread goes on together, after whoever is alone
    --s.waiting;
    s.changed.notify_all();
    s.changed.wait_for(lock, std::chrono::duration<double>(longest_s_), [&] { return !s.somebody_alone; });
    if (tl_together > 0) ++s.together;
    throw;
  }
  --s.waiting;
  s.somebody_alone = true;
  alone_ = true;
  ++tl_alone;
  return true;
}

void Turn::end() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (alone_ && --tl_alone == 0) {
    s.somebody_alone = false;
    if (tl_together > 0) ++s.together;
  }
  if (together_ && --tl_together == 0) --s.together;
  if (alone_ || together_) s.changed.notify_all();
  leave_gate();
  alone_ = together_ = false;
}

}  // namespace stowage::runtime
