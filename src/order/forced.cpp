#include "order/forced.h"

#include <algorithm>

#include "order/frontier.h"
#include "order/walk.h"

namespace stowage {

std::vector<std::int32_t> forced_prefix(const OrderProblem& problem, std::int64_t limit) {
  Walk walk(problem);
  Frontier frontier(problem, walk);
  while (const auto op = frontier.forced(limit)) {
    const auto touched = walk.run(*op);
    frontier.update(*op);
    frontier.update(touched);
  }
  return walk.order();
}

std::vector<std::int32_t> forced_suffix(const OrderProblem& problem, std::int64_t limit) {
  std::vector<std::int32_t> ops = forced_prefix(reversed(problem), limit);
  std::reverse(ops.begin(), ops.end());
  for (std::int32_t& op : ops) op = problem.ops - 1 - op;
  return ops;
}

}  // namespace stowage
