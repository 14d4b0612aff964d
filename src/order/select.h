// Precedences that a limit forces: immediate selection.
//
//   Two heavy ops that no path connects, such as the losses of two micro-batches:
//
//        ───── a ─────▶          a first: when b runs, something of a's side is still held: b's step is at least x
//        ───── b ─────▶          b first: a's step is at least y                          (minimum cuts with the other pinned)
//
//   Every order has one of the two, so min(x, y) bounds its peak, though either op alone could run with far less. Asked for a peak
//   of at most `limit`: if x breaks it, b must come first, and the edge b ──▶ a is added; with each edge, cuts grow and more follows.
//
// Carlier and Pinson's for machines in job shops ("An algorithm for solving the job-shop problem", Management Science
// 35, 1989); differs: the resource is memory, and the test a minimum cut. A round costs two cuts a pair of the ops with
// the heaviest cuts.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "order/problem.h"

namespace stowage {

struct Selection {
  bool contradiction = false;     // no order keeps to the limit
  std::vector<Precedence> edges;  // what every order that keeps to the limit respects
  // No order that has a contradiction or breaks an edge has a smaller peak.
  std::int64_t next_limit = std::numeric_limits<std::int64_t>::max();
};

// Weights of `problem` have at most one opener. `work` is reduced by about a nanosecond a unit.
Selection select(const OrderProblem& problem, std::int64_t limit, std::int64_t& work);

}  // namespace stowage
