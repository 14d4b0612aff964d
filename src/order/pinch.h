// Divide at the tightest op: an order by recursive minimum cuts.
//
//   live │        ╭─v─╮                 1. From both ends run all forced moves under the limit (forced.h): they lose nothing.
//        │      ╭─╯   ╰─╮               2. In what is left find the op v whose step is largest in every order (must_live.h),
//        │  ╭───╯ S     ╰──╮               and the state S in which it can run with the fewest live bytes (division.h).
//        │──╯              ╰──          3. Solve the part before v (the ops of S) and the part after it, each alone.
//        └──────────────────── order     A part that greedy() orders within the limit is done; the limit rises to what a
//                                        division cannot help to break.
//
// Rising stretches are forced when seen from their end and falling ones from their start, so the parts vanish quickly:
// a captured step needs from none to a few hundred cuts. If the parts fit under the limit, so does the whole, and the
// division lost nothing; if one does not, the order is still good, but another might fit: the op that breaks the worst
// such part is named. The idea of dividing where the order has no choice is ROAM's (arXiv 2310.19295, segments between
// memory-insensitive ops); differs: it divides where the memory leaves the least choice.
#pragma once

#include "order/division.h"
#include "order/ordering.h"
#include "order/problem.h"

namespace stowage {

struct PinchResult {
  Ordering order;
  // The op whose step must break the limit most, where divisions put it; -1: all keep to the limit
  std::int32_t conflict = -1;
};

// `work` bounds the arcs that minimum cuts look at; what is left undivided when it runs out is scheduled by greedy().
PinchResult pinch(const OrderProblem& problem, std::int64_t limit, DivisionRule rule, std::int64_t& work);

}  // namespace stowage
