#include "graph/ordered_graph.h"

#include <algorithm>
#include <utility>

#include "graph/in_place_reuse.h"

namespace stowage {
namespace {

std::vector<ReuseAt> reuse_of(const AnalysedGraph& analysed, std::span<const OpId> order,
                              const IdVector<BufferId, Lifetime>& live) {
  std::vector<ReuseAt> result;
  if (!analysed.reuses) return result;
  std::vector<ReusePair> pairs;
  for (std::size_t step = 0; step < order.size(); ++step) {
    const auto now = static_cast<std::int32_t>(step);
    pairs.clear();
    for (const ReusePair& pair : analysed.reuse[order[step]])
      if (live[pair.read].to == now + 1) pairs.push_back(pair);
    if (pairs.empty()) continue;
    for (const ReusePair& pair : best_pairs(analysed.graph, analysed.graph.op(order[step]), pairs))
      result.push_back({now, pair});
  }
  return result;
}

// Per step: by how much the bytes that live on after the step before differ from those of the step before that.
std::vector<std::int64_t> changes(const Graph& graph, const IdVector<BufferId, Lifetime>& live, std::size_t steps) {
  std::vector<std::int64_t> change(steps + 1, 0);
  for (const BufferId b : live.ids()) {
    if (live[b].to - live[b].from < 2) continue;  // lives inside one step only
    const std::int64_t bytes = graph.padded(graph.buffer(b).bytes);
    change[live[b].from + 1] += bytes;
    change[live[b].to] -= bytes;
  }
  return change;
}

std::int64_t largest(const std::vector<std::int64_t>& bytes) {
  return bytes.empty() ? 0 : std::max<std::int64_t>(0, *std::max_element(bytes.begin(), bytes.end()));
}

}  // namespace

OrderedGraph::OrderedGraph(const AnalysedGraph& graph, std::vector<OpId> of)
    : analysed(&graph),
      order(std::move(of)),
      live(lifetimes(graph.graph, order)),
      reuse(reuse_of(graph, order, live)) {}

std::vector<std::int64_t> step_bytes(const OrderedGraph& ordered, std::span<const ReuseAt> used) {
  const AnalysedGraph& analysed = *ordered.analysed;
  const std::vector<std::int64_t> change = changes(analysed.graph, ordered.live, ordered.order.size());
  std::vector<std::int64_t> bytes(ordered.order.size());
  std::vector<ReusePair> here;
  auto next = used.begin();
  std::int64_t before = 0;
  for (std::size_t step = 0; step < bytes.size(); ++step) {
    const OpId op = ordered.order[step];
    here.clear();
    for (; next != used.end() && next->step == static_cast<std::int32_t>(step); ++next) here.push_back(next->pair);
    before += change[step];
    bytes[step] =
        before + (here.empty() ? analysed.added_bytes[op] : added_bytes(analysed.graph, analysed.graph.op(op), here));
  }
  return bytes;
}

std::int64_t peak_bytes(const OrderedGraph& ordered, std::span<const ReuseAt> used) {
  return largest(step_bytes(ordered, used));
}

std::int64_t peak_bytes(const Graph& graph, std::span<const OpId> order) {
  const std::vector<std::int64_t> change = changes(graph, lifetimes(graph, order), order.size());
  std::vector<std::int64_t> bytes(order.size());
  std::int64_t before = 0;
  for (std::size_t step = 0; step < order.size(); ++step)
    bytes[step] = (before += change[step]) + added_bytes(graph, graph.op(order[step]));
  return largest(bytes);
}

}  // namespace stowage
