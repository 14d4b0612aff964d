// Complete search over canonical layouts: is there one of height at most `capacity`?
//
//   Push every rect down until it lies on the floor or on another:      Then place by non-decreasing offset. A rect goes where its
//                                                                       support ends: the highest top among the placed rects that
//        ┌───┐                   ┌───┐                                  it overlaps in time. So a layout is a sequence of choices,
//   ┌──┐ └───┘     ──▶      ┌──┐ │ c │                                  and a node is cut off when
//   └──┘ ┌───┐              │a │ ├───┤     order  a b c                   · a rect rests below the offset that the order has reached
//        └───┘              └──┘ └───┘                                      and nothing can come to lie between,
//   · at some time what is left does not fit above the lowest places that it can take: the sum of what cannot lie below a place,
//     for each place (the release times of one-machine scheduling, with addresses for time),
//   · an unplaced rect would fit whole below the place tried (it should have come first),
//   · it differs from another only by the names of rects of equal life (equal rects rise in the order of preference, and so do
//     rects of one life that lie directly on each other),
//   · the rect placed last is topmost for all of its life, and what was left without it failed: another place cannot help.
// When the unplaced rects fall into groups that share no time, each group is searched alone, the small ones first.
//
// Lowest places. A rect whose support lies below the offset that the order has reached is late: it can only come once
// something lies under it. So its lowest place is not the offset reached, but the lowest top of the unplaced rects that
// overlap it in time:
//
//        │ ? late      │      reached ──────      late can neither stay on a (too low now) nor float: it will lie on b or on c,
//     ───┤     ┌───┐   ├──                        so at least as high as the lower of their tops.
//        └─────┤ a ├───┘        b, c: unplaced
//              └───┘
// This cut makes searches an order of magnitude smaller, or more, on the hardest sets of the MiniMalloc paper (E).
// Soundness of all cuts together: of the layouts within the capacity take those with the lowest centre of mass, and
// among them the one whose rects of equal life are in order. It survives every cut, for each of them would show a way
// to lower or to sort it.
//
// Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning", ASPLOS 2023:
// canonical order, floors, decomposition, topmost rects. Differs: lowest places of late rects, the staircase of places,
// equal lives, sections reduced to local maxima, and running out of work is an answer of its own.
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
SearchResult canonical_search(const LayoutInstance& instance, std::int64_t capacity,
                              std::span<const std::int32_t> preference, std::int64_t& work,
                              const std::function<bool()>& should_stop);

}  // namespace stowage
