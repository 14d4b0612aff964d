// The layout of one leaf: activations as a stack, temporaries above it.
//
//     offset        loss                         Activations are live at the loss. Sorted by free time, the latest freed lowest, they
//       │ ┌──┐   ┌──┐ ┌──┐  temporaries          stand on each other without gaps from offset 0: backward frees them from the top,
//       │ ├──┴───┴──┼─┴──┤                       and leaves no long-lived holes. Temporaries lie above the activations that live with
//       │ │   a3    │    │                       them, placed by the layout ILP.
//       │ ├─────────┴─┐  └─
//       │ │    a2     └─┐
//       │ │    a1       └───
//       └─┴───────────────────▶ time
//
// ROAM (arXiv 2310.19295). Differs: temporaries are kept above the activations they meet by a floor for each, not by
// pairs in the ILP.
#pragma once

#include <cstdint>
#include <vector>

#include "roam/fit.h"
#include "roam/layout_ilp.h"
#include "stowage/roam.h"

namespace stowage::roam {

struct LeafLayout {
  Offsets offsets;
  std::int64_t activations_top = 0;
};

// `activation[i]`: rect i is live at the loss. Counts into `stats`.
LeafLayout lay_out_leaf(const std::vector<Rect>& rects, const std::vector<char>& activation, const RoamOptions& options,
                        const IlpLimits& limits, RoamStats& stats);

// The layout ILP under the options' limits and switches; counts into `stats` when the solver ran.
LayoutIlpResult place(const Floored& problem, const RoamOptions& options, const IlpLimits& limits, RoamStats& stats);

}  // namespace stowage::roam
