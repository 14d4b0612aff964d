#include "order/critical.h"

#include <algorithm>
#include <numeric>

#include "order/must_live.h"

namespace stowage {
namespace {

constexpr std::int32_t kAll = 32'768;
constexpr std::int32_t kSample = 1'024;
constexpr std::int32_t kFew = 512;  // one block of must_live()

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

std::vector<CriticalOp> unsorted(const OrderProblem& problem, const std::vector<std::int32_t>& ops,
                                 std::int64_t& work) {
  work -= sweep_work(problem, static_cast<std::int32_t>(ops.size()));
  const std::vector<std::int64_t> live = must_live(problem, ops);
  std::vector<CriticalOp> result(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) result[i] = {ops[i], live[i]};
  return result;
}

bool heavier(const CriticalOp& a, const CriticalOp& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.op < b.op; }

}  // namespace

std::vector<CriticalOp> critical_ops(const OrderProblem& problem, std::int64_t& work) {
  std::vector<CriticalOp> result = unsorted(problem, columns(problem), work);
  std::sort(result.begin(), result.end(), heavier);
  return result;
}

CriticalOp most_critical_op(const OrderProblem& problem, std::span<const std::int64_t> known, std::int64_t& work) {
  std::vector<std::int32_t> ops(problem.ops);
  std::iota(ops.begin(), ops.end(), 0);
  if (problem.ops > 2 * kFew) {
    std::nth_element(ops.begin(), ops.begin() + kFew, ops.end(), [&](std::int32_t a, std::int32_t b) {
      return known[a] != known[b] ? known[a] > known[b] : a < b;
    });
    ops.resize(kFew);
    std::sort(ops.begin(), ops.end());
  }
  const std::vector<CriticalOp> all = unsorted(problem, ops, work);
  return *std::min_element(all.begin(), all.end(), heavier);
}

}  // namespace stowage
