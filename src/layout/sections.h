// Times that matter: the local maxima of the set of live rects.
//
//   a ██████            A time whose live rects all live at a neighbouring time too adds no constraint. What is left are the times
//   b    ██████         just before a death that follows a birth; here 2: {a, b} and {b, c}.
//   c          ████     Rects are renumbered to sections [lower, upper).
#pragma once

#include <vector>

#include "layout/instance.h"

namespace stowage {

// The same rects over sections in place of times: two rects overlap exactly when they did before. O(n + times).
LayoutInstance by_sections(const LayoutInstance& instance);

}  // namespace stowage
