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
  std::vector<std::int32_t> members;
  for (const std::int64_t percent : {2, 10, 60}) {  // of the work, to each of the two
    if (result.order.peak > result.bound) {
      work = limits.work / 100 * percent;
      result = project(small.problem, std::move(result.order), result.bound, members, work, limits.should_stop);
    }
    if (result.order.peak > result.bound) {
      work = limits.work / 100 * percent;
      result = prove(small.problem, std::move(result.order), result.bound, work, limits.should_stop);
    }
  }
  if (result.order.ops.empty()) return {std::move(start), result.bound};
  return {{small.expanded(result.order.ops), result.order.peak}, result.bound};
}

}  // namespace stowage
