#include "roam/tree.h"

#include <algorithm>

namespace stowage::roam {
namespace {

class Grower {
 public:
  Grower(const OrderProblem& problem, const std::vector<std::int32_t>& cuts, std::int32_t loss, std::int32_t node_limit)
      : cuts_(cuts), limit_(node_limit), segments_(static_cast<std::int32_t>(cuts.size()) - 1) {
    const auto next = std::upper_bound(cuts.begin(), cuts.end(), loss);
    core_ = std::clamp(static_cast<std::int32_t>(next - cuts.begin()) - 1, 0, segments_ - 1);
    find_last_uses(problem);
  }

  std::vector<Shell> run() {
    std::int32_t inner_f = core_ + 1, inner_b = core_ + 1;  // the segments [inner_f, inner_b) are in shells
    while (inner_f > 0 || inner_b < segments_) {
      std::int32_t f = inner_f, b = inner_b;
      while (widen(inner_f, inner_b, f, b)) {
      }
      shells_.push_back({cuts_[f], cuts_[inner_f], cuts_[inner_b], cuts_[b], used_until(f) <= cuts_[b]});
      inner_f = f;
      inner_b = b;
    }
    std::reverse(shells_.begin(), shells_.end());
    return std::move(shells_);
  }

 private:
  // Per segment of the forward pass: the end of the last use of what it or a later one makes. Returned buffers do not
  // count.
  void find_last_uses(const OrderProblem& problem) {
    used_until_.assign(static_cast<std::size_t>(core_) + 2, 0);
    for (std::size_t w = 0; w < problem.weight.size(); ++w) {
      if (problem.open_at_end[w] || problem.openers[w].empty()) continue;
      const auto segment = std::upper_bound(cuts_.begin(), cuts_.end(), problem.openers[w][0]) - cuts_.begin() - 1;
      if (segment > core_) continue;
      for (const std::int32_t user : problem.closers[w])
        used_until_[segment] = std::max(used_until_[segment], user + 1);
    }
    for (std::int32_t s = core_; s >= 0; --s) used_until_[s] = std::max(used_until_[s], used_until_[s + 1]);
  }
  [[nodiscard]] std::int32_t used_until(std::int32_t segment) const { return used_until_[segment]; }

  [[nodiscard]] std::int32_t size(std::int32_t from, std::int32_t to) const { return cuts_[to] - cuts_[from]; }

  // One segment more on each side, then on the backward side while the shell is dependent. The first widening need not
  // fit.
  bool widen(std::int32_t inner_f, std::int32_t inner_b, std::int32_t& f, std::int32_t& b) const {
    const bool first = f == inner_f && b == inner_b;
    const std::int32_t wider_f = std::max(f - 1, 0);
    const bool core = inner_f == core_ + 1 && inner_b == inner_f && first;  // the loss stands alone to begin with
    const std::int32_t wider_b = core ? b : std::min(b + 1, segments_);
    if (wider_f == f && wider_b == b) return false;
    const auto fits = [&](std::int32_t from, std::int32_t to) {
      return size(from, inner_f) + size(inner_b, to) <= limit_;
    };
    if (!first && !fits(wider_f, wider_b)) return false;
    f = wider_f;
    b = wider_b;
    while (b < segments_ && used_until(f) > cuts_[b] && fits(f, b + 1)) ++b;
    return true;
  }

  const std::vector<std::int32_t>& cuts_;
  std::int32_t limit_;
  std::int32_t segments_;
  std::int32_t core_ = 0;  // the segment of the loss
  std::vector<std::int32_t> used_until_;
  std::vector<Shell> shells_;
};

}  // namespace

std::vector<Shell> subgraph_tree(const OrderProblem& problem, const std::vector<std::int32_t>& cuts, std::int32_t loss,
                                 std::int32_t node_limit) {
  if (cuts.size() < 2) return {};
  return Grower(problem, cuts, loss, node_limit).run();
}

}  // namespace stowage::roam
