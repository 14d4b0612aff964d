#include "order/greedy.h"

#include <algorithm>

#include "order/frontier.h"
#include "order/rise_tree.h"
#include "order/walk.h"

namespace stowage {
namespace {

constexpr int kLooks = 64;  // at ready ops that do not fit

class Scheduler {
 public:
  Scheduler(const OrderProblem& problem, GreedyRule rule, std::int64_t limit)
      : problem_(problem), rule_(rule), limit_(limit), walk_(problem), frontier_(problem, walk_), rises_(problem.ops) {
    for (std::int32_t op = 0; op < problem.ops; ++op) note(op);
  }

  std::vector<std::int32_t> run() {
    for (std::int32_t left = problem_.ops; left > 0; --left) step(pick());
    return walk_.order();
  }

 private:
  void step(std::int32_t op) {
    limit_ = std::max(limit_, walk_.live() + walk_.rise(op));
    const auto touched = walk_.run(op);
    frontier_.update(op);
    frontier_.update(touched);
    note(op);
    for (const std::int32_t t : touched) note(t);
  }

  void note(std::int32_t op) { rises_.set(op, walk_.ready(op) ? walk_.rise(op) : RiseTree::kNotReady); }

  std::int32_t pick() {
    if (const auto op = frontier_.forced(limit_)) return *op;
    const std::int64_t room = limit_ - walk_.live();
    if (rises_.least() > room) return rises_.first(rises_.least());  // nothing fits: the least step
    if (rule_ == GreedyRule::kProgramOrder) return rises_.first(room);
    int looks = 0;
    for (const auto& [delta, rise, op] : frontier_.rising()) {
      if (rise <= room) return op;
      if (++looks == kLooks) break;
    }
    return rises_.first(rises_.least());
  }

  const OrderProblem& problem_;
  GreedyRule rule_;
  std::int64_t limit_;
  Walk walk_;
  Frontier frontier_;
  RiseTree rises_;  // of the ready ops
};

}  // namespace

Ordering greedy(const OrderProblem& problem, GreedyRule rule, std::int64_t limit) {
  Ordering result{Scheduler(problem, rule, limit).run(), 0};
  result.peak = peak(problem, result.ops);
  return result;
}

}  // namespace stowage
