#include "roam/order.h"

#include <algorithm>
#include <numeric>

#include "order/greedy.h"
#include "order/must_live.h"
#include "roam/arrange.h"
#include "roam/leaves.h"
#include "roam/order_ilp.h"
#include "roam/segments.h"
#include "solver/highs_library.h"

namespace stowage::roam {
namespace {

// The best of program order and list scheduling in both directions; program order when equal.
std::vector<std::int32_t> start_order(const OrderProblem& segment) {
  std::vector<std::int32_t> best(segment.ops);
  std::iota(best.begin(), best.end(), 0);
  std::int64_t least = peak(segment, best);
  const std::vector<std::int64_t> steps = must_live(segment);
  const std::int64_t bound = std::max(segment.base, *std::max_element(steps.begin(), steps.end()));
  if (least <= bound) return best;
  const auto consider = [&](std::vector<std::int32_t> order) {
    const std::int64_t bytes = peak(segment, order);
    if (bytes >= least) return;
    least = bytes;
    best = std::move(order);
  };
  const OrderProblem backwards = reversed(segment);
  for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise}) {
    consider(greedy(segment, rule, bound).ops);
    std::vector<std::int32_t> order = greedy(backwards, rule, bound).ops;
    std::reverse(order.begin(), order.end());
    for (std::int32_t& op : order) op = segment.ops - 1 - op;
    consider(std::move(order));
  }
  return best;
}

struct Division {
  std::vector<std::int32_t> order;  // of the steps of the arranged problem
  std::vector<std::int32_t> cuts;   // in positions of `order`
};

Division divide(const OrderProblem& problem, const RoamOptions& options, RoamStats& stats) {
  std::vector<std::int32_t> ends;
  if (options.segments) {
    ends = insensitive(problem.preds, std::vector<char>(problem.ops, 0));
    stats.insensitive_ops = std::ssize(ends);
  }
  ends.push_back(problem.ops);
  Division result;
  std::vector<char> before(problem.ops, 0);
  std::int32_t from = 0;
  for (const std::int32_t to : ends) {
    if (to == from) continue;
    std::vector<std::int32_t> members(to - from);
    std::iota(members.begin(), members.end(), from);
    const OrderProblem segment = restricted(problem, members, before);
    for (std::int32_t c = from; c < to; c += options.node_limit) result.cuts.push_back(c);
    for (const std::int32_t op : start_order(segment)) result.order.push_back(from + op);
    for (const std::int32_t op : members) before[op] = 1;
    from = to;
  }
  result.cuts.push_back(problem.ops);
  return result;
}

}  // namespace

Ordered find_order(const AnalysedGraph& graph, const OrderProblem& plain, const RoamOptions& options,
                   const std::string& library, const std::function<bool()>& should_stop, RoamStats& stats) {
  if (options.order_ilp) load_highs(library);  // said now rather than after some work
  Ordered result;
  const Arranged arranged = arrange(graph, plain, options);
  stats.update_branches = arranged.update_branches;
  stats.delayed_branches = arranged.delayed_branches;
  if (arranged.ops.empty()) return result;

  const Division division = divide(arranged.problem, options, stats);
  const OrderProblem problem = in_order(arranged.problem, division.order);
  const auto loss = std::find(division.order.begin(), division.order.end(), arranged.loss) - division.order.begin();
  result.shells = subgraph_tree(problem, division.cuts, static_cast<std::int32_t>(loss), options.node_limit);
  stats.shells = std::ssize(result.shells);
  for (const Shell& shell : result.shells) stats.independent_shells += shell.independent;

  const Solved solved = solve_leaves(problem, division.cuts, result.shells, {&options, should_stop, library}, stats);
  if (options.multi_stream) stats.multi_stream_peak_bytes = schedule_peak(problem, solved.levels);
  for (std::size_t step = 0; step < solved.order.size(); ++step) {
    if (solved.order[step] == loss) result.loss = static_cast<std::int32_t>(step);
    result.order.emplace_back(arranged.ops[division.order[solved.order[step]]]);
  }
  return result;
}

}  // namespace stowage::roam
