// The least that any cut comes to where each stage is judged alone and the worst counts, by dynamic programming:
//
//   rest(s, i) = min over j of max(stage_bound(s, i, j), rest(s + 1, j))        rest(S - 1, i) = stage_bound(S - 1, i, n)
//
//   | 0 ... i |  stage s  | j ... n |
//
// Proof: stages [s, S) of layers [i, n) are stage s of [i, j) for some j, and a best way to cut the rest after it; the
// worst of a list is the larger of its first and the worst of the others, which does not depend on how [0, i) is cut. So
// rest(0, 0) is exact for the worst stage, and a bound of every goal whose value no stage alone passes (cut_goal.h).
// O(S n^2) stages looked at, O(S n) memory.
//
// The principle is that of PipeDream (Narayanan et al., SOSP 2019, section 3.1) and of partitions of chains before it
// (Bokhari, IEEE Transactions on Computers 37, 1988).
#pragma once

#include <vector>

#include "pipeline/cut_goal.h"

namespace stowage::pipeline {

class CutBound {
 public:
  explicit CutBound(const CutGoal& goal);

  // Of stages [s, S) of layers [first, n); kNever: there is no way
  [[nodiscard]] std::int64_t rest(std::int32_t s, std::int32_t first) const {
    return s == stages_ ? 0 : rest_[at(s, first)];
  }
  // The first layer of each stage of a cut whose worst stage is the least; empty: there is none
  [[nodiscard]] std::vector<std::int32_t> best_cut() const;

 private:
  [[nodiscard]] std::size_t at(std::int32_t s, std::int32_t first) const {
    return static_cast<std::size_t>(s) * static_cast<std::size_t>(layers_) + static_cast<std::size_t>(first);
  }
  std::int32_t stages_, layers_;
  std::vector<std::int64_t> rest_;
  std::vector<std::int32_t> end_;  // of stage s, in a best way from there on
};

}  // namespace stowage::pipeline
