// The planner with all its options on small graphs: a plan is valid for both checkers, keeps its limit and its figures,
// and nothing that trying everything finds is below a proven bound.
#include <algorithm>

#include "fuzz/decode_graph.h"
#include "fuzz/target.h"
#include "stowage/check.h"
#include "stowage/planner.h"
#include "support/every_order.h"
#include "support/least_time.h"
#include "support/naive_checker.h"

namespace stowage::fuzz {
namespace {

bool in_program_order(const Plan& plan) {
  return std::ranges::is_sorted(plan.steps, {}, [](const Step& step) { return step.op.value; });
}

void judge_plan(const Graph& graph, const PlanOptions& options, const PlanResult& result) {
  const Plan& plan = *result.plan;
  const CheckReport report = check(graph, plan);
  require(report.valid && report.peak_bytes == result.peak_bytes, "a plan is valid, and its peak the one it says");
  require(testing::naive_peak(graph, plan) == result.peak_bytes, "the slow checker agrees");
  require(result.peak_bytes <= plan.arena_bytes, "the arena holds the peak");
  require(result.gap >= 0 && result.gap == gap(result.peak_bytes, result.lower_bound_bytes), "the gap is not negative");
  require(result.step_ns >= result.program_step_ns + result.recompute_ns, "what runs again takes time");
  require(result.smallest_bytes <= result.resident_bytes + plan.arena_bytes,
          "no budget smaller than the smallest was met");
  const bool plain = result.recomputed_ops == 0 && result.swapped_bytes == 0;
  require(!plain || result.lower_bound_bytes <= result.peak_bytes,
          "the bound holds for plans without recomputation and swapping");
  require(!plain || !options.keep_order || in_program_order(plan), "the order is kept");
  bool proven = result.peak_bytes <= result.lower_bound_bytes;
  if (options.budget_bytes) {
    require(result.resident_bytes + plan.arena_bytes <= *options.budget_bytes, "the budget is kept");
    require(*options.budget_bytes >= result.budget_bound_bytes, "no plan fits below the bound on budgets");
    require(result.step_bound_ns && *result.step_bound_ns <= result.step_ns, "the bound on time holds");
    proven = proven && result.step_bound_ns == result.step_ns;
  } else {
    require(plain, "without a limit nothing runs again or is copied");
    const auto program = [&] {
      PlanOptions keep = options;
      keep.keep_order = true;
      return plan.arena_bytes <= stowage::plan(graph, keep).plan->arena_bytes;
    };
    require(result.peak_bytes <= result.program_peak_bytes || program(),
            "without a limit no plan is worse than program order");
  }
  require(result.outcome == (proven ? Outcome::kOptimal : Outcome::kFeasible), "optimal means that every bound is met");
}

// Against every order, for graphs of which there are few.
void compare_with_every_order(const Graph& graph, const PlanOptions& options, const PlanResult& result) {
  std::size_t pairs = 0;
  for (const Op& op : graph.ops) pairs += op.takeover.size();
  if (options.keep_order || graph.ops.size() > 4 || pairs > 3) return;
  const testing::LeastPeak least = testing::least_peak(graph);
  const std::int64_t peak = options.takeover ? least.with_reuse : least.plain;
  require(result.lower_bound_bytes <= peak, "no order is below the bound");
  require(!result.plan || options.budget_bytes || peak <= result.peak_bytes, "no plan is below the best order");
}

// Against every sequence of ops that fits, without a link.
void compare_with_every_state(const Graph& graph, const PlanOptions& options, const PlanResult& result) {
  if (!options.budget_bytes || options.link_gbps > 0 || !options.takeover || graph.ops.size() > 4 ||
      graph.buffers.size() > 6)
    return;
  const std::int64_t capacity = *options.budget_bytes - result.resident_bytes;
  const auto least = testing::least_ns(graph, capacity);
  if (!least) return require(!result.plan, "nothing fits where trying everything finds nothing");
  require(*options.budget_bytes >= result.budget_bound_bytes, "a bound on budgets lies below what fits in live bytes");
  if (!result.plan) return;
  require(*result.step_bound_ns <= *least, "no sequence is below the bound on time");
  require(*least <= result.step_ns, "no plan is faster than the fastest sequence");
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  PlanOptions options = fuzz::decode_options(bytes);
  const std::int64_t most_ops = bytes.chance(40) ? 20 : 5;
  const bool limited = bytes.chance(60);
  const auto graph = fuzz::decode_graph(bytes, most_ops);
  if (!graph) return 0;
  if (limited) options.budget_bytes = fuzz::decode_budget(bytes, *graph);
  const PlanResult result = plan(*graph, options);
  const bool there = result.outcome == Outcome::kOptimal || result.outcome == Outcome::kFeasible;
  fuzz::require(there == result.plan.has_value(), "a plan is there, or a reason");
  fuzz::require(result.lower_bound_bytes <= result.program_peak_bytes, "program order is not below the bound");
  fuzz::require(there || options.budget_bytes, "without a limit there is a plan");
  fuzz::require(result.outcome != Outcome::kUnknown || options.budget_work > 0,
                "only a limit on work leaves a question open");
  if (there) {
    fuzz::judge_plan(*graph, options, result);
  } else {
    fuzz::require(result.smallest_bytes == 0 || *options.budget_bytes < result.smallest_bytes,
                  "what fits is not refused");
  }
  fuzz::compare_with_every_order(*graph, options, result);
  fuzz::compare_with_every_state(*graph, options, result);
  return 0;
}
