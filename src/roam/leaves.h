// The leaf problems of the order, and their solution one by one.
//
//   shells    ├─ f0 ─┼─ f1 ─┤core├─ b1 ─┼─ b0 ─┤       A leaf is a shell's two windows of the start order. What a window does to the rest is
//   leaves    { f0, b0 }  { f1, b1 }  { core }         the same whatever its order, so leaves are solved apart. A shell of more than
//                                                      node_limit ops (its segments are large) is solved segment by segment.
//
//   leaf ──▶ start meets the must-live bound ──▶ proven        (must_live.h)
//        └─▶ same as an earlier leaf ──────────▶ its answer    (48 equal layers are one program)
//        └─▶ order ILP ────────────────────────▶ proven, or the incumbent, or the start
//
// ROAM solves its leaves in parallel, each by the ILP. The first two answers are ours; they change no peak.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "order/problem.h"
#include "roam/order_ilp.h"
#include "roam/tree.h"
#include "stowage/roam.h"

namespace stowage::roam {

struct Solved {
  std::vector<std::int32_t> order;   // of the steps of `problem`
  std::vector<std::int32_t> levels;  // multi stream: per step of `problem`, its time step
};

struct LeafOptions {
  const RoamOptions* options = nullptr;
  std::function<bool()> should_stop;
  std::string library;
};

// `problem` in step order; `cuts` as in tree.h. Counts into `stats`.
Solved solve_leaves(const OrderProblem& problem, const std::vector<std::int32_t>& cuts,
                    const std::vector<Shell>& shells, const LeafOptions& options, RoamStats& stats);

}  // namespace stowage::roam
