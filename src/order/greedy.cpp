#include "order/greedy.h"

#include <algorithm>

#include "order/frontier.h"
#include "order/walk.h"

namespace stowage {
namespace {

class Scheduler {
 public:
  Scheduler(const OrderProblem& problem, GreedyRule rule, std::int64_t limit)
      : problem_(problem), rule_(rule), limit_(limit), walk_(problem), frontier_(problem, walk_) {
    for (std::int32_t op = 0; op < problem.ops; ++op) note(op);
  }

  Ordering run() {
    for (std::int32_t left = problem_.ops; left > 0; --left) step(pick());
    return {walk_.order(), limit_};
  }

 private:
  void step(std::int32_t op) {
    limit_ = std::max(limit_, walk_.live() + walk_.rise(op));
    const auto touched = walk_.run(op);
    frontier_.update(op);
    frontier_.update(touched);
    for (const std::int32_t t : touched) note(t);
  }

  void note(std::int32_t op) {
    if (rule_ == GreedyRule::kProgramOrder && walk_.ready(op)) by_id_.insert(op);
  }

  std::int32_t pick() {
    if (const auto op = frontier_.forced(limit_)) return *op;
    if (const auto op = fitting()) return *op;
    return least_step();
  }

  std::optional<std::int32_t> fitting() {
    if (rule_ == GreedyRule::kProgramOrder) {
      while (!by_id_.empty() && walk_.done(*by_id_.begin())) by_id_.erase(by_id_.begin());
      for (const std::int32_t op : by_id_)
        if (!walk_.done(op) && walk_.live() + walk_.rise(op) <= limit_) return op;
      return std::nullopt;
    }
    for (const auto& [delta, rise, op] : frontier_.rising())
      if (walk_.live() + rise <= limit_) return op;
    return std::nullopt;
  }

  std::int32_t least_step() const {
    std::pair<std::int64_t, std::int32_t> best{INT64_MAX, -1};
    if (!frontier_.falling().empty()) best = *frontier_.falling().begin();
    for (const auto& [delta, rise, op] : frontier_.rising()) best = std::min(best, {rise, op});
    return best.second;
  }

  const OrderProblem& problem_;
  GreedyRule rule_;
  std::int64_t limit_;
  Walk walk_;
  Frontier frontier_;
  std::set<std::int32_t> by_id_;
};

}  // namespace

Ordering greedy(const OrderProblem& problem, GreedyRule rule, std::int64_t limit) {
  Ordering result = Scheduler(problem, rule, limit).run();
  result.peak = peak(problem, result.ops);
  return result;
}

}  // namespace stowage
