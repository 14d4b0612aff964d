#include "budget/time_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/capped.h"
#include "graph/dependencies.h"
#include "order/max_flow.h"
#include "order/must_live.h"
#include "order/problem.h"

namespace stowage::budget {
namespace {

constexpr std::size_t kPivots = 6;
constexpr int kPrices = 24;
constexpr char kBefore = 1, kAfter = 2;
// Flows are integers: bytes are priced in 1/1000 ns.
constexpr double kUnits = 1000;
constexpr double kCheapest = 1e-6;  // ns a byte

std::int64_t units(double ns) { return static_cast<std::int64_t>(std::floor(ns * kUnits)); }

std::vector<char> reached(const Csr& edges, std::int32_t from) {
  std::vector<char> seen(edges.rows(), 0);
  std::vector<std::int32_t> stack{from};
  while (!stack.empty()) {
    const std::int32_t op = stack.back();
    stack.pop_back();
    for (const std::int32_t next : edges[op])
      if (!seen[next]) {
        seen[next] = 1;
        stack.push_back(next);
      }
  }
  return seen;
}

}  // namespace

TimeBound::TimeBound(const Recipes& recipes, Link link, std::int64_t work)
    : recipes_(recipes), work_(work), once_(recipes.ops, 0), version_wanted_(recipes.buffers, 0) {
  program_ns_ = std::accumulate(recipes.cost.begin(), recipes.cost.end(), std::int64_t{0});
  for (std::int32_t b = 0; b < recipes.buffers; ++b)
    version_wanted_[b] = static_cast<std::int32_t>(recipes.makers[b].size());
  for (std::int32_t k = 0; k < recipes.ops; ++k)
    for (const Need& need : recipes.needs[k])
      if (!need.written) version_wanted_[need.buffer] = std::min(version_wanted_[need.buffer], need.version);
  const Graph& graph = *recipes.graph;
  for (std::int32_t k = 0; k < recipes.ops; ++k) {
    const Op& op = graph.ops[k];
    once_[k] = op.effect || op.once ||
               std::any_of(op.writes.begin(), op.writes.end(), [&](BufferId b) { return graph.buffer(b).resident; });
  }
  if (link.there()) {
    bandwidth_ = link.bytes_per_ns;
    for (const Buffer& buffer : graph.buffers)
      if (!buffer.resident && buffer.bytes > 0)
        bandwidth_ =
            std::max(bandwidth_, static_cast<double>(graph.padded(buffer.bytes)) /
                                     static_cast<double>(std::max<std::int64_t>(1, link.duration(buffer.bytes))));
  }
  const double bytes =
      static_cast<double>(std::accumulate(recipes.bytes.begin(), recipes.bytes.end(), std::int64_t{1}));
  dearest_ = std::min(static_cast<double>(program_ns_) + 1, 1e15 / bytes);
  deps_ = content_dependencies(graph);
  const OrderProblem problem = order_problem(*recipes.analysed, deps_);
  const std::vector<std::int64_t> live = must_live(problem);
  std::vector<std::int32_t> by_live(live.size());
  std::iota(by_live.begin(), by_live.end(), 0);
  std::stable_sort(by_live.begin(), by_live.end(), [&](std::int32_t a, std::int32_t b) { return live[a] > live[b]; });
  for (const std::int32_t op : by_live) {
    if (pivots_.size() >= kPivots) break;
    pivots_.push_back(pivot(op));
  }
}

TimeBound::Pivot TimeBound::pivot(std::int32_t op) const {
  Pivot result{op, recipes_.analysed->run_bytes[OpId(op)], 0, std::vector<char>(recipes_.ops, 0)};
  std::int64_t before = 0, after = recipes_.cost[op];
  const std::vector<char> up = reached(deps_.preds, op), down = reached(deps_.succs, op);
  for (std::int32_t k = 0; k < recipes_.ops; ++k) {
    if (up[k]) before += recipes_.cost[k];
    if (down[k]) after += recipes_.cost[k];
    result.relation[k] = up[k] ? kBefore : down[k] ? kAfter : 0;
  }
  result.side_ns = std::max(before, after);
  return result;
}

TimeBound::Cut TimeBound::cut(const Pivot& pivot, double price, double cost_factor) {
  constexpr std::int32_t kSource = 0, kSink = 1;  // has not run when the pivot does; has run
  FlowNetwork net(2);
  std::vector<std::int32_t> run_node(recipes_.ops), needed_node(recipes_.buffers, -1), op_node(recipes_.ops, -1);
  for (std::int32_t k = 0; k < recipes_.ops; ++k)
    run_node[k] = k == pivot.op || pivot.relation[k] == kAfter ? kSource
                  : pivot.relation[k] == kBefore               ? kSink
                                                               : net.add_node();
  std::vector<std::int32_t> buffers;
  std::vector<char> free(recipes_.buffers, 0);
  for (const Need& need : recipes_.needs[pivot.op]) free[need.buffer] = 1;
  const auto need = [&](std::int32_t from, std::int32_t b) {
    if (free[b] || recipes_.bytes[b] == 0 || run_node[recipes_.makers[b][0]] == kSource) return;
    if (needed_node[b] < 0) {
      needed_node[b] = net.add_node();
      net.add_node();
      net.add_arc(needed_node[b], needed_node[b] + 1,
                  std::max<std::int64_t>(0, units(price * static_cast<double>(recipes_.bytes[b]))));
      buffers.push_back(b);
    }
    net.add_arc(from, needed_node[b], FlowNetwork::kInfinite);
  };
  const auto again = [&](std::int32_t maker) {
    op_node[maker] = net.add_node();
    bool never = once_[maker] != 0;
    for (const std::int32_t end : recipes_.ends[maker]) {
      never |= end == pivot.op || run_node[end] == kSink;
      if (end != pivot.op && run_node[end] > kSink) net.add_arc(op_node[maker], run_node[end], FlowNetwork::kInfinite);
    }
    net.add_arc(op_node[maker], run_node[maker],
                never ? FlowNetwork::kInfinite : units(cost_factor * static_cast<double>(recipes_.cost[maker])));
    for (const Need& n : recipes_.needs[maker])
      if (!n.written) need(op_node[maker], n.buffer);
  };
  for (std::int32_t k = 0; k < recipes_.ops; ++k) {
    if (run_node[k] == kSink) continue;
    if (k != pivot.op)
      for (const Need& n : recipes_.needs[k]) need(run_node[k], n.buffer);
    if (run_node[k] == kSource) continue;
    for (const std::int32_t pred : deps_.preds[k])
      if (run_node[pred] > kSink) net.add_arc(run_node[pred], run_node[k], FlowNetwork::kInfinite);
  }
  for (std::int32_t b = 0; b < recipes_.buffers; ++b)
    if (recipes_.returned[b]) need(kSource, b);
  for (std::size_t next = 0; next < buffers.size(); ++next) {
    const std::int32_t b = buffers[next];
    for (std::int32_t v = 0; v < std::max(1, version_wanted_[b]); ++v) {
      const std::int32_t maker = recipes_.makers[b][v];
      if (run_node[maker] == kSource) break;
      if (op_node[maker] < 0) again(maker);
      net.add_arc(needed_node[b] + 1, op_node[maker], FlowNetwork::kInfinite);
    }
  }
  const std::int64_t flow = net.maximize(kSource, kSink, work_);
  const std::vector<char> side = net.source_side(kSource);
  Cut result;
  for (const std::int32_t b : buffers)
    if (side[needed_node[b]] && !side[needed_node[b] + 1]) result.kept_bytes += recipes_.bytes[b];
  result.cost_ns = static_cast<double>(flow) / kUnits - price * static_cast<double>(result.kept_bytes);
  const double lane = price * bandwidth_;
  const double without = static_cast<double>(program_ns_) + static_cast<double>(flow) / kUnits +
                         price * static_cast<double>(pivot.own_bytes);
  if (cost_factor == 1) {
    lines_.push_back({without + lane * static_cast<double>(pivot.side_ns), price, 1 + lane});
    if (lane > 0) lines_.push_back({without, price, 1 + lane / 2});
  }
  return result;
}

double TimeBound::slope(const Pivot& pivot, const Cut& cut, std::int64_t capacity) const {
  const double ns = static_cast<double>(program_ns_) + cut.cost_ns;
  return static_cast<double>(cut.kept_bytes + pivot.own_bytes - capacity) -
         bandwidth_ * std::min(ns - static_cast<double>(pivot.side_ns), ns / 2);
}

// Between a price that is too low and one that is too high, the lines of both ways meet at the next price to try.
void TimeBound::search(const Pivot& pivot, std::int64_t capacity) {
  Cut low = cut(pivot, kCheapest);
  if (slope(pivot, low, capacity) <= 0) return;
  Cut high = cut(pivot, dearest_);
  if (work_ <= 0 || slope(pivot, high, capacity) >= 0) return;
  for (int i = 0; i < kPrices && work_ > 0 && low.kept_bytes > high.kept_bytes; ++i) {
    const double price = (high.cost_ns - low.cost_ns) / static_cast<double>(low.kept_bytes - high.kept_bytes);
    const Cut middle = cut(pivot, price);
    if (middle.kept_bytes == low.kept_bytes || middle.kept_bytes == high.kept_bytes) break;
    (slope(pivot, middle, capacity) > 0 ? low : high) = middle;
  }
}

std::int64_t TimeBound::at(std::int64_t capacity) {
  for (const Pivot& pivot : pivots_)
    if (work_ > 0) search(pivot, capacity);
  return known(capacity);
}

std::int64_t TimeBound::least_capacity() {
  std::int64_t least = 0;
  for (const Pivot& pivot : pivots_) {
    least = std::max(least, pivot.own_bytes);
    if (bandwidth_ > 0 || work_ <= 0) continue;
    std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
    std::swap(work_, unlimited);
    least = std::max(least, pivot.own_bytes + cut(pivot, 1, 0).kept_bytes);
    std::swap(work_, unlimited);
  }
  return least;
}

std::int64_t TimeBound::known(std::int64_t capacity) const {
  double best = static_cast<double>(program_ns_);
  for (const Line& line : lines_) {
    const double ns = line.at(capacity);
    // A link faster than any: its line is beyond what a double holds, and says nothing
    if (std::isfinite(ns)) best = std::max(best, ns);
  }
  // What is not whole ns up is rounding.
  return std::max(program_ns_,
                  static_cast<std::int64_t>(std::ceil(std::min(best, static_cast<double>(kMostSum)) - 0.5)));
}

}  // namespace stowage::budget
