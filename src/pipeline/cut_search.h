// The best cut of a chain under one schedule: branch and bound over where each stage ends, first stage first.
//
//   stage 0 ends at 1 ─ stage 1 ends at 2 ─ ...        a part is left when its stages' bounds, or what the rest comes to at
//           │             └ at 3 ✗ bound                least (cut_bound.h), are no better than the best cut so far
//           └ at 2 ─ ...
//
// It begins with the cut whose worst stage is the least, improved by moving one end by up to four cuts while that helps. When the
// tree is done the best cut is proven; when `node_limit` nodes were not enough, the bound is that of the root. The tree
// has up to C(n - 1, S - 1) leaves, each judged in O(S * micro-batches).
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/cut_bound.h"

namespace stowage::pipeline {

struct CutResult {
  std::vector<std::int32_t> firsts;  // the first layer of each stage; empty: none is better than `below`
  std::int64_t value = kNever;
  std::int64_t bound = 0;  // no cut is below it; kNever: there is none
  bool done = false;       // the tree was looked at to its end
  std::int64_t nodes = 0;
};

// The least value below `below` (kNever: any).
CutResult search_cut(const CutGoal& goal, std::int64_t below, std::int64_t node_limit);

}  // namespace stowage::pipeline
