// A step under a budget: the runs of ops in order, repeats included, and what waits on the host between two uses.
//
//   line      A   B   C   D   A'  E           A' runs op A again
//   a         █████████       █████           events of a: created at A, read at C; created at A', read at E
//                  gap ^                      between A and C lies a gap in which a is live; between C and A' nothing is
//   b             ███·········███             a swap: b is away from `out_by` up to `in_from`
//
// A copy of a buffer lives from the run that creates it (or the copy in) up to its last use before the next run that
// creates it. So the line and the swaps say everything; lifetimes follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "budget/recipes.h"
#include "stowage/ids.h"

namespace stowage::budget {

using Node = std::int32_t;  // a run: a name that stays when others are inserted or removed

inline constexpr Node kEnd = -1;  // after the last run

// `buffer` is away between two uses. The nodes are of the line, in this order.
struct Swap {
  std::int32_t buffer = -1;
  Node out_at = -1;   // the copy out is issued just before this node; not used when the host already has the content
  Node out_by = -1;   // from this node on the buffer is gone
  Node in_from = -1;  // from this node on it is back, or on its way; kEnd: only the end of the step needs it
};

struct Sequence {
  std::vector<Node> line;
  std::vector<std::int32_t> op;  // per node ever made
  std::vector<char> repeat;      // per node: the op has run before
  std::vector<Swap> swaps;

  static Sequence of(std::span<const OpId> order);
  Node make(std::int32_t of_op) {
    op.push_back(of_op);
    repeat.push_back(1);
    return static_cast<Node>(op.size()) - 1;
  }
};

struct Insertion {
  std::int32_t before = 0;  // position in the line; its size: at the end
  Node node = -1;
};
// Inserts and removes nodes at once; insertions of one position keep their order. O(line).
void edit(Sequence& sequence, std::span<const Insertion> insertions, const std::vector<char>& removed);

}  // namespace stowage::budget
