// Squeaky wheel: who ends above the target is served earlier the next time.
//
//   order  a b c d e        d ends above the target          order  a d b c e
//   list fit ───────────▶   blame d ─────────────────────▶   list fit, and so on
//
// Joslin and Clements, "Squeaky wheel optimization", JAIR 10, 1999, over the lowest fit of list_fit.h. A blamed rect
// moves to a random earlier place; after a while without success the search goes back to the best order and shuffles it
// a little. Seeded; each round costs one list fit.
#pragma once

#include <functional>
#include <span>

#include "layout/instance.h"

namespace stowage {

// Starts from the order `order`. Stops at a height of `target`, when `work` (rects looked at) runs out, or when told
// to. Returns the best layout met; none when there was no work for one.
Offsets squeaky_wheel(const LayoutInstance& instance, std::vector<std::int32_t> order, std::int64_t target,
                      std::int64_t& work, std::uint64_t seed, const std::function<bool()>& should_stop);

}  // namespace stowage
