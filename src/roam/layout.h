// ROAM's layout of a step whose order is given: each buffer to the shell that owns it, each shell laid out, the shells
// put together.
//
//   owner of a buffer      made and freed forward         the shell in which it is freed
//                          made and freed backward        the shell in which it is made
//                          an activation                  the shell whose backward part frees it
//
// So what crosses shells belongs to the inner one, except an activation that backward frees further out. ROAM (arXiv
// 2310.19295).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "roam/tree.h"
#include "stowage/layout.h"
#include "stowage/roam.h"

namespace stowage::roam {

// A shell on the time axis of the items.
struct TimedShell {
  std::int64_t forward_from = 0, forward_to = 0;
  std::int64_t backward_from = 0, backward_to = 0;
};

// `loss`: end of the forward pass. Shells outermost first; without any, all is one leaf. Throws SolverMissing when the
// ILP is on and HiGHS is not there. Counts into `stats`.
LayoutResult lay_out(const std::vector<LayoutItem>& items, std::int64_t align, std::int64_t loss,
                     const std::vector<TimedShell>& shells, const RoamOptions& options, const std::string& library,
                     const std::function<bool()>& should_stop, RoamStats& stats);

}  // namespace stowage::roam
