// Compiled steps in several threads take turns where the tensors of all may move: planned calls run together, a call
// within an eager budget runs alone, since its limit counts what every thread allocates and its block may let go of
// what others use.
//
//   thread 1   ──planned──   ──planned──  wait ─────────────┐──planned──
//   thread 2     ──planned──  wait ──alone: eager, within its budget──┘
//
// Whoever waits for a turn alone goes before those that come later. One step's calls come one after the other, through
// its gate. Knows neither steps nor tensors. After a fork the child has the turn of the thread that forked, and no
// other.
#pragma once

namespace stowage::runtime {

constexpr double kLongestWaitS = 600;

// One thread at a time is through, as often as it wants.
class Gate {
 private:
  friend class Turn;
  const void* thread_ = nullptr;
  int depth_ = 0;
};

class Turn {
 public:
  // `gate`: which the turn goes through; null for none.
  Turn(Gate* gate, double longest_s) : gate_(gate), longest_s_(longest_s) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { end(); }

  // Together with others; at once where this thread has a turn already. `waits` is called now and then meanwhile, and
  // may throw: then there is no turn. Throws Error where none comes for so long: most likely the other thread waits for
  // this one.
  void begin(void (*waits)());
  // From now on alone; true where this was not so before, and others may have run meanwhile.
  bool alone(void (*waits)());
  void end();

 private:
  void leave_gate();

  Gate* gate_;
  double longest_s_;
  bool through_ = false;
  bool together_ = false;
  bool alone_ = false;
};

}  // namespace stowage::runtime
