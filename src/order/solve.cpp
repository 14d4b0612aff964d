#include "order/solve.h"

#include "order/bound.h"
#include "order/prove.h"

namespace stowage {
namespace {

constexpr std::size_t kFirstCuts = 64;

}  // namespace

BranchResult solve(const Contracted& small, Ordering start, std::int64_t bound, const SolveLimits& limits) {
  if (small.problem.ops == 0 || bound >= start.peak) return {std::move(start), bound};
  std::int64_t work = limits.work;
  bound = std::max(bound, cut_bound(small.problem, critical_ops(small.problem, work), kFirstCuts, start.peak, work));
  BranchResult result{{{}, start.peak}, bound};  // only the peak: an order with ops is a better one
  struct Stage {
    decltype(&branch) search;
    std::int64_t percent;  // of the work
  };
  for (const Stage stage : {Stage{branch, 1}, Stage{prove, 100}, Stage{branch, 45}}) {
    if (result.order.peak <= result.bound) break;
    work = limits.work / 100 * stage.percent;
    result = stage.search(small.problem, std::move(result.order), result.bound, work, limits.should_stop);
  }
  if (result.order.ops.empty()) return {std::move(start), result.bound};
  return {{small.expanded(result.order.ops), result.order.peak}, result.bound};
}

}  // namespace stowage
