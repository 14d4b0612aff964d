// In-place reuse in a step under a budget: which of an op's pairs a run can use, and what the run then adds.
//
//   line    A     k     B     A'    C        pair [a, x] of k: the first copy of a has its last use at k, since A runs again before C:
//   a       ███████           ███████        x may lie over it, although a itself lives on. Of a copy that B still reads it may not,
//   x             ▓▓▓██████████████          and not of one that waits on the host after k.
//
// The best of the pairs that can be used is looked for once per op and set of pairs. Not for several threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/analysed_graph.h"

namespace stowage::budget {

class ReuseTable {
 public:
  // `on`: in-place reuse is allowed; otherwise no op has pairs. `graph` must outlive this.
  ReuseTable(const AnalysedGraph& graph, bool on);

  struct Best {
    std::int64_t added = 0;        // bytes on top of what was live before, at the heaviest tick
    std::vector<ReusePair> pairs;  // used
  };
  [[nodiscard]] const std::vector<ReusePair>& pairs(std::int32_t op) const {
    return on_ ? analysed_->reuse[OpId(op)] : none_;
  }
  // Of the pairs of `op` those with ends[i] have an r that ends.
  [[nodiscard]] const Best& best(std::int32_t op, const std::vector<char>& ends) const;

 private:
  const AnalysedGraph* analysed_;
  bool on_;
  std::vector<ReusePair> none_;
  mutable std::vector<std::map<std::vector<char>, Best>> best_;
};

}  // namespace stowage::budget
