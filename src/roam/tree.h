// The subgraph tree: forward segments paired with the backward segments that mirror them, in shells around the loss.
//
//   segments   f0  f1  f2  loss  b2  b1  b0          What a forward segment saves, its mirror uses: a shell sees its activations come and
//              └───┼───┼────┼────┼───┼───┘ outer     go, and what lies further in comes and goes in between. Each shell is the parent of
//                  └───┼────┼────┼───┘               the next one in; grown from the loss outwards, each as far as node_limit allows.
//                      └────┴────┘ core
//
//   independent: all that its forward part (or a shell further in) makes and the backward pass uses is used by the end of its own
//   backward part. dependent: something outlives it.
//
// ROAM (arXiv 2310.19295) and its code: one segment forward, one backward, as long as both fit; when one side is used
// up the other goes on alone. Differs: the two passes seldom have equally many segments, so the backward side also goes
// on alone while the shell is dependent and fits (the code has such a generator, never called).
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"

namespace stowage::roam {

// Steps [from, to) of the forward and of the backward pass; either may be empty. Both touch the shell further in.
struct Shell {
  std::int32_t forward_from = 0, forward_to = 0;
  std::int32_t backward_from = 0, backward_to = 0;
  bool independent = true;

  [[nodiscard]] std::int32_t ops() const { return forward_to - forward_from + backward_to - backward_from; }
};

// `cuts`: 0, the first step of each segment, and the number of steps. `problem` in step order. Outermost first.
std::vector<Shell> subgraph_tree(const OrderProblem& problem, const std::vector<std::int32_t>& cuts, std::int32_t loss,
                                 std::int32_t node_limit);

}  // namespace stowage::roam
