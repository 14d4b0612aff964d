#include "order/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "graph/dependencies.h"
#include "graph/liveness.h"
#include "order/bound.h"
#include "order/contract.h"
#include "order/greedy.h"
#include "order/pinch.h"
#include "order/solve.h"
#include "order/takeover.h"
#include "order/takeover_branch.h"

namespace stowage {
namespace {

constexpr std::size_t kRootCuts = 64;

bool same_extra(const OrderProblem& a, const OrderProblem& b) { return a.extra == b.extra; }

// What an order really takes.
using Judge = std::function<std::int64_t(std::span<const std::int32_t>)>;

// The orders found, best peak first found first.
class Candidates {
 public:
  Candidates(const OrderProblem& problem, Judge judge) : problem_(problem), reversed_(reversed(problem)), judge_(std::move(judge)) {
    std::vector<std::int32_t> program(problem.ops);
    std::iota(program.begin(), program.end(), 0);
    add(std::move(program));
  }

  void add(std::vector<std::int32_t> ops) {
    const std::int64_t bytes = judge_(ops);
    if (!found_.empty() && bytes > peak_) return;
    if (found_.empty() || bytes < peak_) found_.clear();
    peak_ = bytes;
    if (std::find(found_.begin(), found_.end(), ops) == found_.end()) found_.push_back(std::move(ops));
  }

  void add_greedy(std::int64_t limit) {
    for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise}) {
      add(greedy(problem_, rule, limit).ops);
      add(turned(greedy(reversed_, rule, limit).ops));
    }
  }

  // The best order with every forced move as early, and as late, as it goes: its peak stays.
  void add_variants() {
    const std::vector<std::int32_t> best = found_[0];
    const OrderProblem here = restricted(problem_, best, std::vector<char>(problem_.ops, 0));
    for (const bool late : {false, true}) {
      std::vector<std::int32_t> ops = greedy(late ? reversed(here) : here, GreedyRule::kProgramOrder, peak_).ops;
      if (late) ops = turned(std::move(ops));
      for (std::int32_t& op : ops) op = best[op];
      add(std::move(ops));
    }
  }

  void add_pinch(const Contracted& small, std::int64_t limit, std::int64_t work) {
    for (const DivisionRule rule : {DivisionRule{CutSide::kSmallest, 12}, DivisionRule{CutSide::kLargest, 12}})
      if (work > 0) add(small.expanded(pinch(small.problem, limit, rule, work).order.ops));
  }

  [[nodiscard]] std::int64_t least() const { return peak_; }
  [[nodiscard]] const std::vector<std::vector<std::int32_t>>& orders() const { return found_; }

 private:
  // An order of the reversed problem as one of the problem.
  [[nodiscard]] std::vector<std::int32_t> turned(std::vector<std::int32_t> ops) const {
    std::reverse(ops.begin(), ops.end());
    for (std::int32_t& op : ops) op = problem_.ops - 1 - op;
    return ops;
  }

  const OrderProblem& problem_;
  OrderProblem reversed_;
  Judge judge_;
  std::vector<std::vector<std::int32_t>> found_;
  std::int64_t peak_ = 0;
};

// By must-live bytes and minimum cuts at the heaviest ops.
std::int64_t bound_of(const OrderProblem& problem, std::size_t cuts, std::int64_t work) {
  return cut_bound(problem, critical_ops(problem, work), cuts, std::numeric_limits<std::int64_t>::max(), work);
}

// All that is returned lives through the last step.
std::int64_t returned_bytes(const Graph& graph) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : graph.buffers)
    if (buffer.returned) bytes += graph.padded(buffer.bytes);
  return bytes;
}

// The problems between which the truth lies (takeover.h), and what judges an order.
struct Model {
  const Graph& graph;
  Uses uses;
  OrderProblem plain;               // no takeovers
  std::vector<TakeoverPair> pairs;  // the possible ones
  OrderProblem problem;             // of the plans, pessimistic
  OrderProblem relaxed;             // of the bound
  Contracted small;                 // of `relaxed`

  Model(const Graph& of, bool takeover) : graph(of), uses(stowage::uses(of)) {
    const Dependencies deps = dependencies(graph);
    plain = order_problem(graph, deps, uses);
    pairs = takeover_pairs(graph, deps, uses);
    problem = takeover ? certain_problem(graph, plain, pairs) : plain;
    relaxed = relaxed_problem(graph, plain, pairs);
    small = contracted(relaxed);
    judge_by_pairs = takeover && !same_extra(problem, relaxed);
  }

  [[nodiscard]] Judge judge() const {
    if (!judge_by_pairs) return [this](std::span<const std::int32_t> order) { return peak(problem, order); };
    return [this](std::span<const std::int32_t> order) {
      const std::vector<OpId> ops(order.begin(), order.end());
      return peak_bytes(graph, ops, takeovers(graph, ops));
    };
  }

  bool judge_by_pairs = false;
};

// On the problem of the plans; when takeovers make the bound's problem another one, on that too.
std::int64_t search(const Model& model, std::int64_t bound, Candidates& candidates, const OrderOptions& options) {
  const SolveLimits limits{options.work, options.should_stop};
  const bool same = same_extra(model.problem, model.relaxed);
  if (!same) {
    const auto& start = candidates.orders()[0];
    candidates.add(solve(contracted(model.problem), {start, peak(model.problem, start)}, bound, limits).order.ops);
  }
  const auto& start = candidates.orders()[0];
  BoundedOrder result = solve(model.small, {start, peak(model.relaxed, start)}, bound, limits);
  candidates.add(std::move(result.order.ops));
  if (same || !options.takeover || result.bound >= candidates.least()) return result.bound;
  const SolveOrder solve_node = [&](const OrderProblem& problem, Ordering from, std::int64_t proven, std::int64_t work) {
    return solve(contracted(problem), std::move(from), proven, {work, options.should_stop});
  };
  result = branch_on_takeovers(model.graph, model.plain, model.uses, model.pairs, {candidates.orders()[0], candidates.least()},
                               result.bound, options.work, solve_node);
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
  const Model model(graph, options.takeover);
  Candidates candidates(model.problem, model.judge());
  OrderResult result;
  result.bound_bytes = std::max(bound_of(model.small.problem, 0, options.work), returned_bytes(graph));
  candidates.add_greedy(result.bound_bytes);
  if (candidates.least() > result.bound_bytes) result.bound_bytes = search(model, result.bound_bytes, candidates, options);
  if (candidates.orders().size() < 2) {  // others of the same peak, for the layout to choose from
    candidates.add_variants();
    candidates.add_greedy(candidates.least());
    candidates.add_pinch(model.small, candidates.least(), options.work);
  }
  result.peak_bytes = candidates.least();
  for (const auto& order : candidates.orders()) result.orders.push_back(as_ops(order));
  return result;
}

std::int64_t root_bound(const Graph& graph, std::int64_t work) {
  return std::max(bound_of(Model(graph, true).small.problem, kRootCuts, work), returned_bytes(graph));
}

std::int64_t plain_bound(const Graph& graph) {
  const OrderProblem problem = order_problem(graph, dependencies(graph), uses(graph));
  return bound_of(problem, 0, 0);
}

}  // namespace stowage
