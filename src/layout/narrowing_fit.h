// Lowest fit of items that become narrower: a result that lies over a larger input leaves the rest of it free.
//
//   offset
//     ┤ ┌──────┐            An item is a rect of its narrow bytes for all its life, and above it the rest until narrow_from:
//     ┤ │ rest │  c         two rects with one address between them. c finds room where the rest has been.
//     ┤ ├──────┴──────┐
//     ┤ │    narrow   │
//
// Lowest fit in a given order, as list_fit.h has it for plain rects: the offsets at which an item would meet a placed one
// are intervals, two for each pair of their rects; it goes to the lowest offset outside all of them. Orders are those
// of the plain greedies; then what touches the top goes further to the front, as in squeaky_wheel.h. Quadratic in the
// items, so for some thousand of them; of more, each item stays as wide as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stowage/layout.h"

namespace stowage {

bool narrows(const LayoutItem& item);

// No layout has a smaller height: the largest sum of bytes live at one time.
std::int64_t narrowing_bound(const std::vector<LayoutItem>& items, std::int64_t align);

// One offset per item, of a height below `ceiling`; empty when none is found. `work` is reduced by the pairs looked at.
std::vector<std::int64_t> narrowing_fit(const std::vector<LayoutItem>& items, std::int64_t align, std::int64_t ceiling,
                                        std::int64_t& work, const std::function<bool()>& should_stop);

}  // namespace stowage
