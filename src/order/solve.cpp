#include "order/solve.h"

#include <algorithm>
#include <array>

#include "order/bound.h"
#include "order/projection.h"
#include "order/prove.h"

namespace stowage {
namespace {

constexpr std::size_t kFirstCuts = 64;
constexpr std::array kTurns = {Turn{1, 1}, Turn{10, 6}, Turn{60, 20}};  // percent of the work

}  // namespace

void Solver::cut(std::int64_t& work) {
  if (done() || small_.problem.ops == 0) return;
  const std::int64_t bound =
      cut_bound(small_.problem, critical_ops(small_.problem, work), kFirstCuts, result_.order.peak, work);
  result_.bound = std::max(result_.bound, bound);
}

void Solver::know(std::int64_t peak) {
  if (peak < result_.order.peak) result_.order = {{}, peak};
}

void Solver::turn(Turn given, std::int64_t& work, const std::function<bool()>& should_stop) {
  const auto use = [&](std::int64_t share, auto search) {
    if (done() || share <= 0 || small_.problem.ops == 0) return;
    std::int64_t left = share;
    result_ = search(left);
    work -= share - left;
  };
  use(given.projection, [&](std::int64_t& left) {
    return project(small_.problem, std::move(result_.order), result_.bound, members_, left, should_stop);
  });
  use(given.decisions, [&](std::int64_t& left) {
    return prove(small_.problem, std::move(result_.order), result_.bound, left, should_stop);
  });
}

BoundedOrder solve(const Contracted& small, Ordering start, std::int64_t bound, const SolveLimits& limits) {
  Solver solver(small, start.peak, bound);
  std::int64_t work = limits.work;
  solver.cut(work);
  for (const Turn turn : kTurns)
    solver.turn({limits.work / 100 * turn.projection, limits.work / 100 * turn.decisions}, work, limits.should_stop);
  if (solver.peak() >= start.peak) return {std::move(start), solver.bound()};
  return {{solver.order(), solver.peak()}, solver.bound()};
}

}  // namespace stowage
