// Compiled steps in several threads take turns where the tensors of all may move: planned calls run together, a call within an eager
// budget runs alone, since its limit counts what every thread allocates and its block may let go of what others use.
//
//   thread 1   ──planned──   ──planned──  wait ─────────────┐──planned──
//   thread 2     ──planned──  wait ──alone: eager, within its budget──┘
//
// Whoever waits for a turn alone goes before those that come later. Knows neither steps nor tensors. After a fork the child has the turn of the
// thread that forked, and no other.
#pragma once

namespace stowage::runtime {

class Turn {
 public:
  explicit Turn(double longest_s) : longest_s_(longest_s) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { end(); }

  // Together with others; at once where this thread has a turn already. `waits` is called now and then meanwhile, and may throw: then there
  // is no turn. Throws Error where none comes for so long: most likely the other thread waits for this one.
  void begin(void (*waits)());
  // From now on alone; true where this was not so before, and others may have run meanwhile.
  bool alone(void (*waits)());
  void end();

 private:
  double longest_s_;
  bool together_ = false;
  bool alone_ = false;
};

}  // namespace stowage::runtime
