#include "rivals/model_ilp.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "graph/analysed_graph.h"
#include "layout/instance.h"
#include "order/problem.h"
#include "rivals/evaluate.h"
#include "roam/layout_ilp.h"
#include "roam/order_ilp.h"
#include "roam/spans.h"
#include "solver/highs_library.h"

namespace stowage::rivals {
namespace {

constexpr double kSlack = 1.01, kOrderGap = 0.005, kLayoutGap = 0.001;
constexpr std::int64_t kNoNodeLimit = std::numeric_limits<std::int32_t>::max();

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

roam::IlpLimits limits_of(const ModelOptions& options, double gap) {
  roam::IlpLimits limits;
  limits.nodes = kNoNodeLimit;
  limits.iterations = options.iterations;
  limits.seconds = options.seconds;
  limits.entries = options.entries;
  limits.relative_gap = gap;
  limits.slack = kSlack;
  limits.library = options.library;
  return limits;
}

// Program order; where ops share steps the better of as early and as late as possible.
roam::Schedule start_of(const OrderProblem& problem, roam::Streams streams) {
  roam::Schedule serial(problem.ops);
  std::iota(serial.begin(), serial.end(), 0);
  if (streams == roam::Streams::kSingle) return serial;
  const roam::Spans levels = roam::spans(problem, streams, 1.0);
  return roam::schedule_peak(problem, levels.asap) <= roam::schedule_peak(problem, levels.alap) ? levels.asap
                                                                                                : levels.alap;
}

void find_order(const Graph& graph, const ModelOptions& options, ModelResult& result) {
  const auto start = Clock::now();
  const OrderProblem problem = order_problem(AnalysedGraph(graph));
  const roam::Streams streams = options.multi_stream ? roam::Streams::kMulti : roam::Streams::kSingle;
  const roam::OrderIlpResult found =
      roam::order_ilp({{problem}}, {{start_of(problem, streams)}}, streams, limits_of(options, kOrderGap));
  std::vector<std::int32_t> ops(problem.ops);
  std::iota(ops.begin(), ops.end(), 0);
  const roam::Schedule& step = found.schedules[0];
  std::stable_sort(ops.begin(), ops.end(), [&](std::int32_t a, std::int32_t b) { return step[a] < step[b]; });
  for (const std::int32_t op : ops) result.order.emplace_back(op);
  result.model_peak_bytes = found.peak;
  result.order_stage = {found.outcome, found.bound, since(start)};
}

std::int64_t pairs_of(const std::vector<Rect>& rects) {
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < rects.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) pairs += roam::meet(rects[i], rects[j]);
  return pairs;
}

std::vector<std::int64_t> lay_out(const std::vector<LayoutItem>& items, std::int64_t align, const ModelOptions& options,
                                  ModelStage& stage) {
  const auto start = Clock::now();
  const LayoutInstance instance = make_instance(items, align);
  roam::Floored problem{instance.rects, std::vector<std::int64_t>(instance.rects.size(), 0)};
  const bool small = pairs_of(problem.rects) <= options.pairs;
  const std::int32_t most = small ? std::numeric_limits<std::int32_t>::max() : 0;
  const roam::LayoutIlpResult found = roam::layout_ilp(problem, most, limits_of(options, kLayoutGap));
  std::vector<std::int64_t> offsets(items.size(), 0);
  for (std::size_t r = 0; r < instance.rects.size(); ++r)
    offsets[static_cast<std::size_t>(instance.item[r])] = found.offsets.at[r];
  const bool tried = small || found.outcome == Outcome::kOptimal;
  stage = {tried ? found.outcome : Outcome::kUnknown, found.bound, since(start)};
  return offsets;
}

}  // namespace

ModelResult model_ilp(const Graph& graph, const ModelOptions& options) {
  load_highs(options.library);
  ModelResult result;
  find_order(graph, options, result);
  const Evaluation checked =
      evaluate(graph, result.order, [&](const std::vector<LayoutItem>& items, std::int64_t align) {
        return lay_out(items, align, options, result.layout_stage);
      });
  result.peak_bytes = checked.peak_bytes;
  result.arena_bytes = checked.arena_bytes;
  return result;
}

}  // namespace stowage::rivals
