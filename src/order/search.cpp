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
#include "order/takeover.h"
#include "order/takeover_branch.h"

namespace stowage {
namespace {

constexpr std::size_t kRootCuts = 512;

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
  Judge judge_;
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

// The problems between which the truth lies (takeover.h), and what judges an order.
struct Model {
  const Graph& graph;
  Uses uses;
  OrderProblem plain;               // no takeovers
  std::vector<TakeoverPair> pairs;  // the possible ones
  OrderProblem problem;             // of the plans, pessimistic
  OrderProblem relaxed;             // of the bound

  Model(const Graph& of, bool takeover) : graph(of), uses(stowage::uses(of)) {
    const Dependencies deps = dependencies(graph);
    plain = order_problem(graph, deps, uses);
    pairs = takeover_pairs(graph, deps, uses);
    problem = takeover ? certain_problem(graph, plain, pairs) : plain;
    relaxed = relaxed_problem(graph, plain, pairs);
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
  const auto& start = candidates.orders()[0];
  BranchResult result = refine(model.problem, {start, peak(model.problem, start)}, bound, options);
  candidates.add(std::move(result.order.ops));
  if (same_extra(model.problem, model.relaxed)) return result.bound;
  const auto& next = candidates.orders()[0];
  result = refine(model.relaxed, {next, peak(model.relaxed, next)}, bound, options);
  candidates.add(std::move(result.order.ops));
  if (!options.takeover || result.bound >= candidates.least()) return result.bound;
  const SolveOrder solve = [&](const OrderProblem& problem, Ordering from, std::int64_t proven, std::int64_t work) {
    return refine(problem, std::move(from), proven, {work, options.should_stop});
  };
  result = branch_on_takeovers(model.graph, model.plain, model.uses, model.pairs, {candidates.orders()[0], candidates.least()},
                               result.bound, options.work, solve);
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
  std::int64_t work = options.work;
  const std::int64_t live = bound_of(model.relaxed, 0, work);
  candidates.add_greedy(live);
  OrderResult result;
  result.bound_bytes = candidates.least() == live ? live : bound_of(model.relaxed, candidates.least(), work);
  if (candidates.least() > result.bound_bytes) result.bound_bytes = search(model, result.bound_bytes, candidates, options);
  if (candidates.orders().size() < 2) {  // others of the same peak, for the layout to choose from
    candidates.add_greedy(candidates.least());
    candidates.add_pinch(candidates.least(), work);
  }
  result.peak_bytes = candidates.least();
  for (const auto& order : candidates.orders()) result.orders.push_back(as_ops(order));
  return result;
}

std::int64_t root_bound(const Graph& graph, std::int64_t work) {
  return bound_of(Model(graph, true).relaxed, std::numeric_limits<std::int64_t>::max(), work);
}

std::int64_t plain_bound(const Graph& graph) {
  const OrderProblem problem = order_problem(graph, dependencies(graph), uses(graph));
  std::int64_t work = 0;
  return cut_bound(problem, must_live(problem), 0, 0, work);
}

}  // namespace stowage
