// Memory-aware scheduling of weight updates: which may run at once, which have to wait, and for how long.
//
//   live bytes of the step without updates                  An update takes its gradient and what it makes itself (an optimizer's
//                 peak                                      temporaries). Where that would raise the peak it waits, for the first step
//               ╭──╮                                        at which it fits. An op that makes a gradient for the update alone waits
//             ╭─╯  ╰──╮    g: no room   ┆ room              with it, so that its inputs stay and not the gradient. The delay radius
//         ╭───╯       ╰───╮             ┆                   bounds the wait. Where nothing fits within it the update runs where the
//     ────╯               ╰─────────────┴──▶ step           fullest step that it causes is least full.
//
// Branches are the connected groups of ops that only serve updates: all that depends on them are updates too, and they
// read gradients, residents and each other; to these comes the op that makes the gradient, when it makes nothing else.
// Ops that have no predecessor but serve updates (step counts, decay in place) run just before their first user.
//
// ROAM (arXiv 2310.19295), section on weight updates; after its authors' code, which marks a gradient when the bytes
// live at its level and three times its size exceed the estimated peak, raises the estimate to three times the
// gradient, and runs marked updates last. A gradient smaller than update_ratio times the inputs of its op never waits:
// waiting would keep the inputs. Differs:
//   · an update's bytes are what its branch really takes (their factor of 3 stands for one optimizer), on the serial timeline;
//   · the delay radius is named by the paper and absent from the code: here a fraction of the step without updates (default: all of it);
//   · the authors' control edges tie an update to single ops. Here its place is between two consecutive memory-insensitive ops of the step
//     without updates, so that these stay insensitive and the leaf's ILP may choose inside; roam.cpp adds the edges.
// O(V + E + branches x V).
#pragma once

#include <cstdint>
#include <vector>

#include "graph/analysed_graph.h"
#include "stowage/roam.h"

namespace stowage::roam {

struct UpdateBranch {
  std::vector<std::int32_t> ops;  // in program order
  std::int32_t ready = -1;        // position in UpdatePlan::base of the last op that it waits for
  std::int32_t at = -1;           // it runs after this position
};

struct UpdatePlan {
  std::vector<std::int32_t> base;  // the ops of the step without updates, in program order
  std::vector<UpdateBranch> branches;
  std::vector<std::int32_t> constants;  // ops without predecessors that serve updates, in program order
};

UpdatePlan schedule_updates(const AnalysedGraph& graph, const RoamOptions& options);

}  // namespace stowage::roam
