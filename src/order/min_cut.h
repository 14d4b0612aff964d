// The least live bytes at which op v can run: a minimum cut.
//
//   Before v runs, the ops that have run form a set S that is closed under preds, holds the ancestors of v and none of v and its
//   descendants. Of all such sets, whichever an order goes through, take one with the fewest live bytes:
//
//     anc(v) = s ──w──▶ weight ──∞──▶ closer ──∞──▶ pred …      an op in S draws its preds into S (∞ arcs op ──▶ pred);
//                                     opener ──w──▶ weight      a weight whose opener is in S and one closer is not
//                                     opener ──w──▶ t = {v} ∪ desc(v)        has its arc of `w` bytes cut.
//
// A closure problem (Picard, "Maximal closure of a graph and applications to combinatorial problems", Management
// Science 22, 1976). cut + step of v bounds the peak, and is never below the must-live bytes of v. It also gives the
// state: where an order is best pinched. One maximum flow an op, on the ops that are neither ancestors nor descendants
// of v.
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"

namespace stowage {

enum class CutSide : std::uint8_t { kSmallest, kLargest };

struct Cut {
  std::int64_t step_bytes = 0;  // the step of v is at least this in every order
  // Per op: in the set S of a minimum cut; empty when work ran out (step_bytes holds all the same)
  std::vector<char> before;
};

// Ops that S must hold and ops that it must not, beside what the precedence says.
struct CutPins {
  std::vector<std::int32_t> in, out;
};

// Each weight of `problem` must have at most one opener. With v < 0 no op runs: the fewest live bytes between the pins.
// `work` is reduced by the arcs looked at. Pins that contradict the precedence or each other give a cut with no set and
// the largest int64 as its bytes.
Cut min_cut(const OrderProblem& problem, std::int32_t v, CutSide side, std::int64_t& work, const CutPins& pins = {});

}  // namespace stowage
