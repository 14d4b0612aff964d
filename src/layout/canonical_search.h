// Complete search over canonical layouts: is there one of height at most `capacity`?
//
//   Push every rect down until it lies on the floor or on another:      Then place by non-decreasing offset. A rect goes where its
//                                                                       support ends: the highest top among the placed rects that
//        ┌───┐                   ┌───┐                                  it overlaps in time. So a layout is a sequence of choices,
//   ┌──┐ └───┘     ──▶      ┌──┐ │ c │                                  and a node is cut off when
//   └──┘ ┌───┐              │a │ ├───┤     order  a b c                   · a rect rests below the offset that the order has reached
//        └───┘              └──┘ └───┘                                      and nothing can come to lie between,
//   · at some time the floor reached plus all that is still to be placed there exceeds the capacity,
//   · an unplaced rect would fit whole below the place tried (it should have come first).
// When the unplaced rects fall into groups that share no time, each group is searched alone.
//
// Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning", ASPLOS 2023. Differs: times are
// reduced to local maxima, supports are kept up to date by neighbour lists, and running out of nodes is an answer of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "layout/instance.h"

namespace stowage {

enum class SearchOutcome : std::uint8_t { kFound, kNone, kLimit };

struct SearchResult {
  SearchOutcome outcome = SearchOutcome::kLimit;
  Offsets offsets;  // when found
};

// Ties between rects of one offset are tried in the order `preference`. `work` is reduced by the rects and
// times looked at; at 0 the search stops. O(n²) memory at worst, for the neighbour lists.
SearchResult canonical_search(const LayoutInstance& instance, std::int64_t capacity, std::span<const std::int32_t> preference,
                              std::int64_t& work, const std::function<bool()>& should_stop);

}  // namespace stowage
