// ROAM with all its switches on small graphs: a plan is valid for both checkers and has the figures it says, no order
// that trying them all finds is better than a leaf that was solved to the end, and the same input gives the same plan.
#include "fuzz/decode_graph.h"
#include "fuzz/target.h"
#include "planner/lay_out_by_roam.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "support/every_order.h"
#include "support/naive_checker.h"

namespace stowage::fuzz {
namespace {

constexpr std::array<std::int32_t, 6> kLimits = {48, 5, 2, 1, 1000, 7};
constexpr std::array<double, 4> kRadii = {1, 0, 0.1, 1e-300};
constexpr std::array<double, 6> kRatios = {1, 0, 0.1, 1e-300, 1e9, 2};
constexpr std::array<std::int64_t, 4> kIterations = {200, 1, 10, 50};

// The ILPs take milliseconds: one input in eight has one.
RoamOptions decode_roam(ByteSource& bytes) {
  RoamOptions options;
  const auto flags = static_cast<unsigned>(bytes.draw(0, 255));
  options.segments = (flags & 1) == 0;
  options.tree = (flags & 2) == 0;
  options.updates = (flags & 4) == 0;
  options.activation_stack = (flags & 8) == 0;
  options.concatenation = (flags & 16) == 0;
  options.multi_stream = (flags & 96) == 96;
  const auto ilps = static_cast<unsigned>(bytes.draw(0, 31));
  options.order_ilp = ilps == 31 || ilps == 30;
  options.layout_ilp = ilps == 31 || ilps == 29;
  options.node_limit = bytes.pick(kLimits);
  options.delay_radius = bytes.pick(kRadii);
  options.update_ratio = bytes.pick(kRatios);
  options.ilp_nodes = bytes.pick(kIterations);
  options.ilp_iterations = bytes.pick(kIterations);
  options.layout_ilp_buffers = bytes.pick(kLimits);
  return options;
}

void judge(const Graph& graph, const PlanOptions& options, const PlanResult& result) {
  require(result.plan.has_value(), "without a limit there is a plan");
  const Plan& plan = *result.plan;
  const CheckReport report = check(graph, plan);
  require(report.valid && report.peak_bytes == result.peak_bytes, "a plan is valid, and its peak the one it says");
  require(testing::naive_peak(graph, plan) == result.peak_bytes, "the slow checker agrees");
  require(result.peak_bytes <= plan.arena_bytes, "the arena holds the peak");
  require(result.lower_bound_bytes <= result.peak_bytes, "the bound holds");
  require(result.recomputed_ops == 0 && result.swapped_bytes == 0, "nothing runs again or is copied");
  require(plan.meta.find("\"method\":\"roam\"") != std::string::npos, "the plan says who made it");
  require(result.gap >= 0 && result.gap == gap(result.peak_bytes, result.lower_bound_bytes), "the gap is not negative");
  require((result.outcome == Outcome::kOptimal) == (result.peak_bytes <= result.lower_bound_bytes),
          "optimal means that the bound is met");
  if (options.budget_bytes)
    require(result.resident_bytes + plan.arena_bytes <= *options.budget_bytes, "the budget is kept");
}

RoamStats stats_of(const Graph& graph, const PlanOptions& options) {
  const AnalysedGraph analysed(graph);
  const OrderModel model(analysed);
  return *lay_out_by_roam(model, choose_orders(model, options, {}), options, {}).stats;
}

void judge_stats(const Graph& graph, const PlanOptions& options) {
  const RoamStats stats = stats_of(graph, options);
  require(0 <= stats.order_proven && stats.order_proven <= stats.order_leaves, "of the leaves some are proven");
  require(0 <= stats.layout_proven && stats.layout_proven <= stats.layout_leaves, "of the layouts some are proven");
  require(stats.order_ilps <= stats.order_leaves && stats.layout_ilps <= stats.layout_leaves + stats.evicted + 1,
          "a leaf has one ILP");
  require(stats.delayed_branches <= stats.update_branches, "branches that wait are branches");
}

// Where the whole step is one leaf of one stream, and the solver has come to an end with figures that doubles hold.
void compare_with_every_order(const Graph& graph, const PlanOptions& options, const PlanResult& result) {
  if (graph.ops.size() > 4) return;
  const testing::LeastPeak least = testing::least_peak(graph);
  require(result.lower_bound_bytes <= least.with_reuse, "no order is below the bound");
  require(least.plain <= result.peak_bytes, "no plan is below the best order");
  const RoamOptions& roam = options.roam;
  std::int64_t bytes = 0;
  for (const Buffer& buffer : graph.buffers) bytes += buffer.bytes;
  if (!roam.order_ilp || roam.multi_stream || roam.segments || roam.updates || roam.node_limit < 4 || bytes > 1 << 16)
    return;
  const RoamStats stats = stats_of(graph, options);
  if (stats.order_leaves == stats.order_proven)
    require(result.peak_bytes == least.plain, "a leaf that is proven is the best");
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  PlanOptions options = fuzz::decode_options(bytes);
  options.method = Method::kRoam;
  options.roam = fuzz::decode_roam(bytes);
  const std::int64_t most_ops = bytes.chance(40) ? 20 : 5;
  const bool limited = bytes.chance(20);
  const bool twice = bytes.chance(10);
  const auto graph = fuzz::decode_graph(bytes, most_ops);
  if (!graph) return 0;
  if (options.keep_order) {
    fuzz::require(!fuzz::accepts([&] { plan(*graph, options); }), "it decides the order");
    options.keep_order = false;
  }
  if (limited) options.budget_bytes = fuzz::decode_budget(bytes, *graph);
  PlanResult result;
  try {
    result = plan(*graph, options);
  } catch (const SolverMissing&) {
    fuzz::require(options.roam.order_ilp || options.roam.layout_ilp, "without an ILP it needs no solver");
    return 0;
  }
  if (limited && !result.plan) {
    fuzz::require(result.outcome == Outcome::kInfeasible || result.outcome == Outcome::kUnknown,
                  "a plan is there, or a reason");
    fuzz::require(result.smallest_bytes == 0 || *options.budget_bytes < result.smallest_bytes,
                  "what fits is not refused");
    return 0;
  }
  fuzz::judge(*graph, options, result);
  fuzz::judge_stats(*graph, options);
  fuzz::compare_with_every_order(*graph, options, result);
  if (twice)
    fuzz::require(to_json(*plan(*graph, options).plan) == to_json(*result.plan), "the same input gives the same plan");
  return 0;
}
