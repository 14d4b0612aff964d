#include "pipeline/cut_search.h"

#include <algorithm>
#include <span>

namespace stowage::pipeline {
namespace {

class Search {
 public:
  Search(const CutGoal& goal, std::int64_t below, std::int64_t node_limit)
      : goal_(goal), bound_(goal), stages_(goal.schedule().stages()), node_limit_(node_limit) {
    result_.value = below;
    costs_.resize(static_cast<std::size_t>(stages_));
    firsts_ = {0};
  }

  CutResult run() {
    const std::int64_t root = std::max(bound_.rest(0, 0), goal_.part_bound(costs_, firsts_, 0));
    if (root < kNever) {
      improve(bound_.best_cut());
      result_.done = root >= result_.value || extend(0, 0);
    } else {
      result_.done = true;
    }
    result_.bound = result_.done ? std::max(root, result_.value) : root;
    if (result_.done && !result_.firsts.empty()) result_.bound = result_.value;
    return std::move(result_);
  }

 private:
  std::int64_t judge(const std::vector<std::int32_t>& firsts) {
    ++result_.nodes;
    std::vector<StageCosts> stages;
    for (std::int32_t s = 0; s < stages_; ++s) stages.push_back(stage(firsts, s));
    const std::int64_t value = goal_.value(stages);
    if (value < result_.value) result_.value = value, result_.firsts = firsts;
    return value;
  }

  [[nodiscard]] StageCosts stage(const std::vector<std::int32_t>& firsts, std::int32_t s) const {
    const auto i = static_cast<std::size_t>(s);
    const std::int32_t end = s + 1 < stages_ ? firsts[i + 1] : goal_.chain().layers();
    return goal_.chain().stage(goal_.schedule(), s, firsts[i], end);
  }

  // Moves one end by a few cuts at a time, while that helps.
  void improve(std::vector<std::int32_t> firsts) {
    const auto& cuts = goal_.chain().cuts();
    std::int64_t best = judge(firsts);
    for (bool better = true; better && result_.nodes < node_limit_ / 2;) {
      better = false;
      for (std::size_t s = 1; s < firsts.size(); ++s) {
        for (const int by : {-1, 1, -2, 2, -4, 4}) {
          const auto at = std::ranges::lower_bound(cuts, firsts[s]) - cuts.begin() + by;
          if (at < 0 || at >= std::ssize(cuts)) continue;
          const std::int32_t moved = cuts[static_cast<std::size_t>(at)], kept = firsts[s];
          if (moved <= firsts[s - 1] || (s + 1 < firsts.size() && moved >= firsts[s + 1])) continue;
          firsts[s] = moved;
          const std::int64_t value = judge(firsts);
          if (value < best) {
            best = value, better = true;
          } else {
            firsts[s] = kept;
          }
        }
      }
    }
  }

  struct Branch {
    std::int64_t bound;
    std::int32_t end;
  };

  // False when the node limit stopped it. `so_far`: the bound of stages [0, s), which are in costs_ and firsts_.
  bool extend(std::int32_t s, std::int64_t so_far) {
    const std::int32_t first = firsts_.back();
    const auto here = static_cast<std::size_t>(s);
    if (s + 1 == stages_) {
      if (std::max(so_far, goal_.stage_bound(s, first, goal_.chain().layers())) < result_.value) judge(firsts_);
      return true;
    }
    std::vector<Branch> branches;
    const auto& cuts = goal_.chain().cuts();
    for (auto end = std::ranges::upper_bound(cuts, first); end != cuts.end(); ++end) {
      std::int64_t bound = std::max(so_far, bound_.rest(s + 1, *end));
      if (bound >= result_.value) continue;
      bound = std::max(bound, goal_.stage_bound(s, first, *end));
      if (bound < result_.value) branches.push_back({bound, *end});
    }
    std::ranges::stable_sort(branches, {}, &Branch::bound);
    for (const Branch& branch : branches) {
      if (branch.bound >= result_.value) break;
      if (++result_.nodes > node_limit_) return false;
      costs_[here] = goal_.chain().stage(goal_.schedule(), s, first, branch.end);
      firsts_.push_back(branch.end);
      const std::int64_t bound = std::max(branch.bound, goal_.part_bound(costs_, firsts_, s + 1));
      const bool went_on = bound >= result_.value || extend(s + 1, bound);
      firsts_.pop_back();
      if (!went_on) return false;
    }
    return true;
  }

  const CutGoal& goal_;
  CutBound bound_;
  std::int32_t stages_;
  std::int64_t node_limit_;
  CutResult result_;
  std::vector<StageCosts> costs_;
  std::vector<std::int32_t> firsts_;
};

}  // namespace

CutResult search_cut(const CutGoal& goal, std::int64_t below, std::int64_t node_limit) {
  return Search(goal, below, node_limit).run();
}

}  // namespace stowage::pipeline
