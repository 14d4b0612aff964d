// Ops that may run side by side without loss become one: a smaller problem with the same least peak.
//
//   u ──▶ v    v waits for u alone and never raises live bytes; its step right after u is no larger than that of u:
//              by submodularity (problem.h) v loses nothing by following u at once.         [follow]
//   u ──▶ s    s alone waits for u, u never lowers live bytes, and its step right before s is no larger than that of s:
//              the same with time reversed, so u loses nothing by running just before s.    [wait]
//
//              ╭─╮u        ╭─╮u               ╭─╮s               ╭─╮ s
//         ─────╯ ╰──── … ──╯v╰──   ▶  [uv]    ╯u──── … ────╯ ╰   ▶  [us]
//
// Precedence is transitively reduced first, and a weight keeps only those closers that can be its last, so that "waits
// for one alone" and "closes for certain" are found where they hold. Merging one pair makes others possible; what is
// left has no such pair. On captured steps this swallows the optimizer's chains, casts, bias gradients and most
// elementwise ops: 2 to 8 times fewer ops. O(E V / 64) for the reduction (beyond 30,000 ops only direct edges are
// looked at), then about O((V + E) log E) a pass.
#pragma once

#include <span>
#include <vector>

#include "order/problem.h"

namespace stowage {

// Each weight of `problem` must have at most one opener.
struct Contracted {
  OrderProblem problem;
  // Per op of it: the ops of the whole that it stands for, in the order to run them
  std::vector<std::vector<std::int32_t>> ops;

  // An order of the problem as one of the whole.
  [[nodiscard]] std::vector<std::int32_t> expanded(std::span<const std::int32_t> order) const {
    std::vector<std::int32_t> result;
    for (const std::int32_t op : order) result.insert(result.end(), ops[op].begin(), ops[op].end());
    return result;
  }
};
Contracted contracted(const OrderProblem& problem);

}  // namespace stowage
