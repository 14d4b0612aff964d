// The leaves' layouts put together, from the outermost shell to the innermost.
//
//     outer  ┌─┐ temporaries ┌─┐          · base: an inner shell begins just above the outer shell's activations, so the temporaries of
//            │ │┌──────────┐ │ │            all shells share the space above;
//     base   ├─┴┤  inner   ├─┴─┤          · conflicts: what crosses shells may meet what lies elsewhere. Of two that overlap the larger
//            │  └──────────┘   │            stays (the activation when equal), the other is evicted;
//            │ activations     │          · re-placement: the evicted go above all that stays and lives with them, by the layout ILP;
//            └─────────────────┘          · lowering: from the lowest address up, each buffer falls to the lowest gap that holds it.
//
// ROAM (arXiv 2310.19295); details after its authors' code. Differs: a buffer that several shells share is laid out by
// its owner over its whole life (there: partly by each, then joined), so only different shells can conflict; conflicts
// are settled from the largest buffer down. O(n²) at worst for n buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "roam/leaf_layout.h"

namespace stowage::roam {

// `leaves`: the rects of each shell, outermost first; every rect is in one of them.
Offsets concatenate(const std::vector<Rect>& rects, const std::vector<char>& activation,
                    const std::vector<std::vector<std::int32_t>>& leaves, const RoamOptions& options,
                    const IlpLimits& limits, RoamStats& stats);

}  // namespace stowage::roam
