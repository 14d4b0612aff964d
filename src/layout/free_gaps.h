// Where a rect fits among those placed so far: the gaps of whole stretches of time, kept as a tree of merged blocks.
//
//   times        [            0..8            ]      Each node of the tree over times keeps two sets of addresses, as sorted blocks
//                [     0..4    ][    4..8     ]      without a gap between them:
//                [ 0..2 ][ 2..4 ] …                    touch   what is taken at some time of the node
//                                                      cover   what rects take that cover all of the node, but not of its parent
//
//   A stretch of time is O(log T) nodes side by side. At some time of it are taken: what they are touched by, and what
//   covers a node above them. A gap of all these sets at once is a gap of the stretch; it is found as a merge finds its
//   next element: each set in turn lifts the address tried to its own next gap, until all agree.
//
//   In the upper levels each node's cover also holds what covers the nodes above it, so that a search sees one set and
//   not one a level: pushed down when a rect is inserted, to as deep a level as costs a rect some 8 nodes on average.
//
//   set 1   ██████░░░████░░░░░        ██ taken, ░░ free. Address 0 is lifted by set 1, then by set 2, then by set 1 again,
//   set 2   ████████░░░░░████░        and both agree where the first gap is that lies in both.
//   first gap of 2 bytes:  ──┴─▶ here
//
// Blocks merge, so that a set holds as many as there are gaps between them and not as there are rects: of a dense layout few.
// That is what lists of neighbours cannot do, whose length is the number of rects that live at once. A search is
// O(log T · blocks), of which a dense layout has a handful; insertion O(log T · (log blocks + a move of some blocks)).
// Nothing can be taken out again. Invariant: the gap found is the one that a scan of all placed rects finds
// (tests/layout/free_gaps_test.cpp).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/block_set.h"
#include "layout/instance.h"
#include "layout/placed_rects.h"

namespace stowage {

class FreeGaps {
 public:
  // For `rects`, that will come.
  FreeGaps(const std::vector<Rect>& rects, std::int32_t times);
  // Offset of the lowest or the tightest gap for `rect` (ties: the lowest; the open top is the last resort). `work` is
  // reduced by the blocks looked at.
  [[nodiscard]] std::int64_t find(const Rect& rect, Gap gap, std::int64_t& work);
  void insert(const Rect& rect, std::int64_t offset, std::int64_t& work);

 private:
  void cover(std::uint32_t node, std::int64_t begin, std::int64_t end);
  void collect(const Rect& rect);
  std::int64_t next_gap(std::int64_t from, std::int64_t bytes);
  [[nodiscard]] std::int64_t end_of_gap(std::int64_t from) const;

  std::uint32_t size_ = 1;                 // a power of two, at least the number of times
  int levels_ = 0;                         // below the root
  int shared_ = 0;                         // down to this level a node's cover holds those of all above it
  std::vector<BlockSet> touch_, cover_;    // children of i: 2i and 2i + 1; the root is 1
  std::vector<BlockSet::Cursor> cursors_;  // scratch
  std::int64_t looked_ = 0, added_ = 0;
};

}  // namespace stowage
