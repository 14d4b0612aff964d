#include "pipeline/cut_bound.h"

#include <algorithm>

namespace stowage::pipeline {

CutBound::CutBound(const CutGoal& goal)
    : stages_(goal.schedule().stages()),
      layers_(goal.chain().layers()),
      rest_(static_cast<std::size_t>(stages_) * static_cast<std::size_t>(layers_), kNever),
      end_(rest_.size(), -1) {
  std::vector<std::int32_t> begins = {0};
  begins.insert(begins.end(), goal.chain().cuts().begin(), goal.chain().cuts().end());
  for (std::int32_t s = stages_ - 1; s >= 0; --s) {
    for (std::size_t b = 0; b < begins.size(); ++b) {
      const std::int32_t first = begins[b];
      if ((s == 0) != (first == 0)) continue;
      const std::size_t here = at(s, first);
      if (s == stages_ - 1) {
        rest_[here] = goal.stage_bound(s, first, layers_);
        end_[here] = layers_;
        continue;
      }
      for (std::size_t e = b + 1; e < begins.size(); ++e) {
        const std::int64_t after = rest(s + 1, begins[e]);
        if (after >= rest_[here]) continue;
        const std::int64_t worst = std::max(after, goal.stage_bound(s, first, begins[e]));
        if (worst < rest_[here]) rest_[here] = worst, end_[here] = begins[e];
      }
    }
  }
}

std::vector<std::int32_t> CutBound::best_cut() const {
  if (rest(0, 0) == kNever) return {};
  std::vector<std::int32_t> firsts = {0};
  for (std::int32_t s = 0; s + 1 < stages_; ++s) firsts.push_back(end_[at(s, firsts.back())]);
  return firsts;
}

}  // namespace stowage::pipeline
