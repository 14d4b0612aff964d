// One ordering problem, from contraction to proof. Each stage ends the search when its order meets the bound.
//
//   contraction ─▶ cut bound ─▶ ┌▶ projection ─▶ decisions ─┐    The two complement each other: projection needs few ops to matter,
//   (contract.h)   (min_cut.h)  │  (projection.h) (prove.h) │    decisions need few states to be open. So they take turns, each with
//                               └───────────────────────────┘    more work than before.
#pragma once

#include <functional>
#include <vector>

#include "order/contract.h"
#include "order/ordering.h"

namespace stowage {

struct SolveLimits {
  std::int64_t work = 0;              // about a nanosecond a unit; the same on every machine
  std::function<bool()> should_stop;  // outer stop; empty: never
};

// Work of one turn.
struct Turn {
  std::int64_t projection = 0, decisions = 0;
};

// Turns on one problem; what projection learned stays from turn to turn.
class Solver {
 public:
  // `small` is contracted() of the problem, `peak` that of an order of it, `bound` proven for it.
  Solver(const Contracted& small, std::int64_t peak, std::int64_t bound) : small_(small), result_{{{}, peak}, bound} {}

  // Minimum cuts at the heaviest ops. `work` is reduced by what they cost.
  void cut(std::int64_t& work);
  // `work` is reduced by what the turn used, which may be a little more than it was given.
  void turn(Turn given, std::int64_t& work, const std::function<bool()>& should_stop);
  // An order of this peak is known from elsewhere.
  void know(std::int64_t peak);

  [[nodiscard]] bool done() const { return result_.order.peak <= result_.bound; }
  [[nodiscard]] std::int64_t peak() const { return result_.order.peak; }
  [[nodiscard]] std::int64_t bound() const { return result_.bound; }
  // The best order found, of the whole problem; empty when none was below the peaks that were known.
  [[nodiscard]] std::vector<std::int32_t> order() const { return small_.expanded(result_.order.ops); }

 private:
  const Contracted& small_;
  BoundedOrder result_;
  std::vector<std::int32_t> members_;  // of projection
};

// All of it. `start` is an order of the whole problem and `bound` proven for it. Never a worse order or bound.
BoundedOrder solve(const Contracted& small, Ordering start, std::int64_t bound, const SolveLimits& limits);

}  // namespace stowage
