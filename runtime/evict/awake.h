// Whether ops are seen, and what may be let go while some are not.
//
// A budget whose limit is far away sleeps (sleep.h): the hook is off, and only the allocator goes on counting. The
// allocation that wakes it is made by an op that nobody watches, so what that op uses is not pinned:
//
//   asleep ──wake(), at home──────────▶ settling: ops inside the unwatched one go unwatched, too (they are known by
//     │                                 autograd having been taken off, or by an interlude). What they use is unknown, and
//     │                                 cannot leave
//     └────wake(), in another thread──▶ home is away: it goes on unwatched until it comes by. What others meet
//                                       meanwhile may be in use there, and is held back
//
// Each time that it is woken it takes twice as many quiet updates to sleep again.
#pragma once

#include <atomic>
#include <vector>

#include "runtime/evict/value.h"

namespace stowage::runtime::evict {

class Awake {
 public:
  explicit Awake(State& state) : state_(state) {}

  [[nodiscard]] bool asleep() const { return asleep_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool others() const { return others_; }
  [[nodiscard]] std::int64_t waking_bytes() const { return state_.options.limit_bytes / 100 * 65; }
  void enters();       // the block begins
  void fall_asleep();  // all is back, and known no more
  void wake();         // by an allocation that passes waking_bytes()
  void after_fork();

  // The calling thread's ops are seen: from now on, or from its first one on. Both take the lock.
  void attach_this_thread();
  static void expect_this_thread();
  void thread_has_an_op() {
    if (tl_expected_) attach_this_thread();
  }

  // Home comes by: between two ops, or (`inside_op`) making room for one that nobody watches.
  void home_comes_by(bool inside_op);
  // What is met now may be in use by an op that nobody watches.
  [[nodiscard]] bool holds_back() const { return home_away_ || settling_; }
  void hold_back(Value& value) { held_back_.emplace_back(&value); }
  void forget_held_back() { held_back_.clear(); }
  // This thread's op runs inside one that nobody watches. Takes the lock.
  bool inside_unwatched_op();

  // After an optimizer's step that stayed far from the limit, or did not: may it sleep?
  bool quiet_enough(bool far_from_limit);

 private:
  static constexpr int kMostQuietUpdates = 64;

  void end_holding_back();

  static thread_local bool tl_expected_;  // this thread's first op is still to come
  State& state_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> settling_{false};
  std::atomic<bool> others_{false};     // threads that are not home have been attached
  std::atomic<bool> home_away_{false};  // the hook is off there although the budget is awake
  std::vector<Ref<Value>> held_back_;   // not evictable until no op of home's goes unwatched
  int quiet_updates_ = 0;               // one after the other, far from the limit
  int quiet_enough_ = 2;                // to sleep
};

}  // namespace stowage::runtime::evict
