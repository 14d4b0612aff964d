#include "stowage/explain.h"

#include <algorithm>

#include "base/capped.h"
#include "explain/advice.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {
namespace {

constexpr std::int64_t kAdviceShare = 8;  // of the effort of a plan, for each changed graph that advice plans

// Budgets to plan, from the largest down: parts of what the arena takes without a limit, or, around a budget that was
// asked for, parts of that.
std::vector<std::int64_t> budgets_to_try(std::int64_t resident, std::int64_t free_arena,
                                         const std::optional<std::int64_t>& asked) {
  const std::int64_t most = resident + free_arena;
  std::vector<std::int64_t> budgets{most};
  const auto part = [&](std::int64_t bytes, double factor) {
    return resident + static_cast<std::int64_t>(static_cast<double>(bytes) * factor);
  };
  if (asked && *asked > resident && *asked < most) {
    for (const double factor : {1.25, 1.1, 1.0, 0.9, 0.75, 0.6}) budgets.push_back(part(*asked - resident, factor));
  } else {
    for (const double factor : {0.85, 0.7, 0.55, 0.4, 0.25}) budgets.push_back(part(free_arena, factor));
  }
  std::erase_if(budgets, [&](std::int64_t b) { return b > most; });
  return budgets;
}

// A plan that came from a file: what it holds is counted. Its step time leaves out stalls for copies, which only its
// planner knew.
PlanResult of_given_plan(const Graph& graph, const Plan& plan, const PlanResult& unlimited) {
  const CheckReport checked = check(graph, plan);
  if (!checked.valid) throw InvalidPlan(checked.message);
  PlanResult result = unlimited;
  result.plan = plan;
  result.peak_bytes = checked.peak_bytes;
  result.gap = gap(result.peak_bytes, result.lower_bound_bytes);
  IdVector<OpId, char> ran(graph.ops.size(), 0);
  for (const Step& step : plan.steps) {
    if (step.kind == Step::Kind::kSwapOut)
      result.swapped_bytes = capped_sum(result.swapped_bytes, graph.buffer(step.buffer).bytes);
    if (step.kind != Step::Kind::kRun || !ran[step.op]++) continue;
    ++result.recomputed_ops;
    result.recompute_ns = capped_sum(result.recompute_ns, graph.op(step.op).cost_ns);
    result.step_ns = capped_sum(result.step_ns, graph.op(step.op).cost_ns);
  }
  const bool squeezed = result.recomputed_ops > 0 || result.swapped_bytes > 0;
  result.outcome = !squeezed && result.peak_bytes == result.lower_bound_bytes ? Outcome::kOptimal : Outcome::kFeasible;
  return result;
}

// A rule that shrinks buffers or takes them out of reads may leave reuse pairs that are none any more.
void drop_lost_pairs(Graph& graph) {
  for (Op& op : graph.ops)
    std::erase_if(op.takeover, [&](const ReusePair& pair) {
      return std::ranges::find(op.reads, pair.read) == op.reads.end() ||
             graph.buffer(pair.created).bytes > graph.buffer(pair.read).bytes;
    });
}

}  // namespace

Explanation explain(const Graph& graph, const std::optional<Plan>& plan, const ExplainOptions& options) {
  const std::optional<std::int64_t> asked = options.plan.budget_bytes;
  std::vector<std::int64_t> tried;
  PlanOptions plan_options = options.plan;
  plan_options.budget_work = options.price_work;
  std::vector<PlanResult> results = plan_each(graph, plan_options, [&](const PlanResult& unlimited) {
    if (options.prices) tried = budgets_to_try(unlimited.resident_bytes, unlimited.plan->arena_bytes, asked);
    std::vector<std::int64_t> budgets;
    if (asked && !plan) budgets.push_back(*asked);  // first: what it takes does not depend on the others
    budgets.insert(budgets.end(), tried.begin(), tried.end());
    return budgets;
  });
  const std::size_t first_price = results.size() - tried.size();
  Explanation explanation;
  explanation.free_arena_bytes = results[0].plan->arena_bytes;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    PlanResult& price = results[first_price + i];
    const bool left_out = !price.plan && price.outcome == Outcome::kUnknown && options.plan.time_limit_seconds <= 0;
    if (left_out) explanation.prices_left_out = tried.size() - i;
    if (left_out) break;
    explanation.prices.push_back({tried[i], price});
    if (!price.plan) break;
  }
  explanation.result = plan ? of_given_plan(graph, *plan, results[0]) : std::move(asked ? results[1] : results.front());
  const PlanResult& result = explanation.result;
  for (const Buffer& buffer : graph.buffers)
    if (buffer.resident) explanation.resident_of_kind[static_cast<std::size_t>(buffer.kind)] += buffer.bytes;
  if (!result.plan) return explanation;
  explanation.peak = peak_moment(graph, *result.plan);
  if (!options.advice) return explanation;
  const auto plan_again = [&](Graph changed) {
    PlanOptions free = options.plan;
    free.budget_bytes.reset();
    drop_lost_pairs(changed);
    free.order_node_budget /= kAdviceShare;
    free.layout_node_budget /= kAdviceShare;
    validate(changed);
    seal(changed);
    return stowage::plan(changed, free).plan->arena_bytes;
  };
  explanation.advice =
      explained::advise({graph, explanation.peak, result.resident_bytes, explanation.free_arena_bytes, plan_again});
  return explanation;
}

}  // namespace stowage
