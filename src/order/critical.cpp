#include "order/critical.h"

#include <algorithm>
#include <numeric>

#include "order/must_live.h"

namespace stowage {
namespace {

constexpr std::int32_t kAll = 32'768;
constexpr std::int32_t kSample = 1'024;

std::vector<std::int32_t> columns(const OrderProblem& problem) {
  std::vector<std::int32_t> ops(problem.ops);
  std::iota(ops.begin(), ops.end(), 0);
  if (problem.ops <= kAll) return ops;
  const std::vector<std::int64_t> step = steps(problem, ops);
  std::nth_element(ops.begin(), ops.begin() + kSample, ops.end(),
                   [&](std::int32_t a, std::int32_t b) { return step[a] != step[b] ? step[a] > step[b] : a < b; });
  ops.resize(kSample);
  std::sort(ops.begin(), ops.end());
  return ops;
}

}  // namespace

std::vector<CriticalOp> critical_ops(const OrderProblem& problem, std::int64_t& work) {
  const std::vector<std::int32_t> ops = columns(problem);
  work -= sweep_work(problem, static_cast<std::int32_t>(ops.size()));
  const std::vector<std::int64_t> live = must_live(problem, ops);
  std::vector<CriticalOp> result;
  for (std::size_t i = 0; i < ops.size(); ++i) result.push_back({ops[i], live[i]});
  std::sort(result.begin(), result.end(),
            [](const CriticalOp& a, const CriticalOp& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.op < b.op; });
  return result;
}

}  // namespace stowage
