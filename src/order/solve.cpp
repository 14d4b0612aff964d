#include "order/solve.h"

#include "order/bound.h"
#include "order/projection.h"
#include "order/prove.h"

namespace stowage {
namespace {

constexpr std::size_t kFirstCuts = 64;

}  // namespace

BoundedOrder solve(const Contracted& small, Ordering start, std::int64_t bound, const SolveLimits& limits) {
  if (small.problem.ops == 0 || bound >= start.peak) return {std::move(start), bound};
  std::int64_t work = limits.work;
  bound = std::max(bound, cut_bound(small.problem, critical_ops(small.problem, work), kFirstCuts, start.peak, work));
  BoundedOrder result{{{}, start.peak}, bound};  // only the peak: an order with ops is a better one
  struct Turn {
    std::int64_t projection, decisions;  // percent of the work
  };
  std::vector<std::int32_t> members;
  for (const Turn turn : {Turn{2, 2}, Turn{20, 12}, Turn{120, 40}}) {
    if (result.order.peak > result.bound) {
      work = limits.work / 100 * turn.projection;
      result = project(small.problem, std::move(result.order), result.bound, members, work, limits.should_stop);
    }
    if (result.order.peak > result.bound) {
      work = limits.work / 100 * turn.decisions;
      result = prove(small.problem, std::move(result.order), result.bound, work, limits.should_stop);
    }
  }
  if (result.order.ops.empty()) return {std::move(start), result.bound};
  return {{small.expanded(result.order.ops), result.order.peak}, result.bound};
}

}  // namespace stowage
