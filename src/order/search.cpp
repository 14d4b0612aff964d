#include "order/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "graph/dependencies.h"
#include "graph/liveness.h"
#include "order/bound.h"
#include "order/branch.h"
#include "order/greedy.h"
#include "order/must_live.h"
#include "order/pinch.h"
#include "order/prove.h"

namespace stowage {
namespace {

constexpr std::size_t kRootCuts = 512;

bool same_extra(const OrderProblem& a, const OrderProblem& b) { return a.extra == b.extra; }

// The orders found, best peak first found first.
class Candidates {
 public:
  explicit Candidates(const OrderProblem& problem) : problem_(problem), reversed_(reversed(problem)) {
    std::vector<std::int32_t> program(problem.ops);
    std::iota(program.begin(), program.end(), 0);
    add(std::move(program));
  }

  void add(std::vector<std::int32_t> ops) {
    const std::int64_t bytes = peak(problem_, ops);
    if (!found_.empty() && bytes > peak_) return;
    if (found_.empty() || bytes < peak_) found_.clear();
    peak_ = bytes;
    if (std::find(found_.begin(), found_.end(), ops) == found_.end()) found_.push_back(std::move(ops));
  }

  void add_greedy(std::int64_t limit) {
    for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise}) {
      add(greedy(problem_, rule, limit).ops);
      std::vector<std::int32_t> ops = greedy(reversed_, rule, limit).ops;
      std::reverse(ops.begin(), ops.end());
      for (std::int32_t& op : ops) op = problem_.ops - 1 - op;
      add(std::move(ops));
    }
  }

  void add_pinch(std::int64_t limit, std::int64_t& work) {
    for (const DivisionRule rule : {DivisionRule{CutSide::kSmallest, 12}, DivisionRule{CutSide::kLargest, 12}})
      if (work > 0) add(pinch(problem_, limit, rule, work).order.ops);
  }

  [[nodiscard]] std::int64_t least() const { return peak_; }
  [[nodiscard]] const std::vector<std::vector<std::int32_t>>& orders() const { return found_; }

 private:
  const OrderProblem& problem_;
  OrderProblem reversed_;
  std::vector<std::vector<std::int32_t>> found_;
  std::int64_t peak_ = 0;
};

std::int64_t bound_of(const OrderProblem& problem, std::int64_t enough, std::int64_t& work) {
  work -= sweep_work(problem);
  return cut_bound(problem, must_live(problem), kRootCuts, enough, work);
}

// A first look by branching, then a proof, then branching with what is left.
BranchResult refine(const OrderProblem& problem, Ordering start, std::int64_t bound, const OrderOptions& options) {
  BranchResult result{std::move(start), bound};
  struct Stage {
    decltype(&branch) search;
    std::int64_t percent;  // of the work
  };
  for (const Stage stage : {Stage{branch, 15}, Stage{prove, 100}, Stage{branch, 35}}) {
    if (result.order.peak <= result.bound) break;
    std::int64_t work = options.work / 100 * stage.percent;
    result = stage.search(problem, std::move(result.order), result.bound, work, options.should_stop);
  }
  return result;
}

// On the problem of the plans; when takeovers make the bound's problem another one, on that too.
std::int64_t search(const OrderProblem& problem, const OrderProblem& relaxed, std::int64_t bound, Candidates& candidates,
                    const OrderOptions& options) {
  BranchResult result = refine(problem, {candidates.orders()[0], candidates.least()}, bound, options);
  candidates.add(std::move(result.order.ops));
  if (same_extra(problem, relaxed)) return result.bound;
  Ordering start{candidates.orders()[0], peak(relaxed, candidates.orders()[0])};
  result = refine(relaxed, std::move(start), bound, options);
  candidates.add(std::move(result.order.ops));
  return result.bound;
}

std::vector<OpId> as_ops(const std::vector<std::int32_t>& order) {
  std::vector<OpId> ops;
  ops.reserve(order.size());
  for (const std::int32_t op : order) ops.emplace_back(op);
  return ops;
}

}  // namespace

OrderResult find_order(const Graph& graph, const OrderOptions& options) {
  const Dependencies deps = dependencies(graph);
  const Uses used = uses(graph);
  const OrderProblem problem = order_problem(graph, deps, used);
  const OrderProblem relaxed = bound_problem(graph, deps, used);
  Candidates candidates(problem);
  std::int64_t work = options.work;
  const std::int64_t live = bound_of(relaxed, 0, work);
  candidates.add_greedy(live);
  OrderResult result;
  result.bound_bytes = candidates.least() == live ? live : bound_of(relaxed, candidates.least(), work);
  if (candidates.least() > result.bound_bytes) result.bound_bytes = search(problem, relaxed, result.bound_bytes, candidates, options);
  if (candidates.orders().size() < 2) {  // others of the same peak, for the layout to choose from
    candidates.add_greedy(candidates.least());
    candidates.add_pinch(candidates.least(), work);
  }
  result.peak_bytes = candidates.least();
  for (const auto& order : candidates.orders()) result.orders.push_back(as_ops(order));
  return result;
}

std::int64_t root_bound(const Graph& graph, std::int64_t work) {
  const OrderProblem relaxed = bound_problem(graph, dependencies(graph), uses(graph));
  return bound_of(relaxed, std::numeric_limits<std::int64_t>::max(), work);
}

}  // namespace stowage
