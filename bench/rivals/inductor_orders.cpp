#include "rivals/inductor_orders.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <queue>
#include <tuple>

#include "graph/dependencies.h"
#include "rivals/list_scheduler.h"

namespace stowage::rivals {
namespace {

std::int64_t planned_bytes(const Graph& graph, BufferId b) {
  return graph.buffer(b).resident ? 0 : graph.padded(graph.buffer(b).bytes);
}

// Bytes that each op creates and reads.
std::vector<std::int64_t> moved_bytes(const Graph& graph) {
  std::vector<std::int64_t> result;
  for (const Op& op : graph.ops) {
    std::int64_t sum = 0;
    for (const auto* list : {&op.creates, &op.reads, &op.writes})
      for (const BufferId b : *list) sum += planned_bytes(graph, b);
    result.push_back(sum);
  }
  return result;
}

struct Waiting {
  std::vector<std::int32_t> positions;  // of the predecessors, increasing
  std::int32_t op;

  bool operator>(const Waiting& other) const { return std::tie(positions, op) > std::tie(other.positions, other.op); }
};

// Predecessors before their op, cheapest first, without recursion.
class DepthFirst {
 public:
  DepthFirst(const Graph& graph, const Dependencies& dependencies)
      : moved_(moved_bytes(graph)), preds_(dependencies.preds), seen_(graph.ops.size(), false) {}

  std::vector<OpId> run() {
    std::vector<std::int32_t> all(seen_.size());
    std::iota(all.begin(), all.end(), 0);
    for (const std::int32_t op : cheapest_first(all)) visit(op);
    return std::move(order_);
  }

 private:
  struct Frame {
    std::int32_t op;
    std::vector<std::int32_t> preds;
    std::size_t next = 0;
  };

  std::vector<std::int32_t> cheapest_first(std::span<const std::int32_t> ops) const {
    std::vector<std::int32_t> sorted(ops.begin(), ops.end());
    std::sort(sorted.begin(), sorted.end(), [&](std::int32_t a, std::int32_t b) {
      return std::tie(moved_[static_cast<std::size_t>(a)], a) < std::tie(moved_[static_cast<std::size_t>(b)], b);
    });
    return sorted;
  }

  void enter(std::int32_t op) {
    const auto i = static_cast<std::size_t>(op);
    if (seen_[i]) return;
    seen_[i] = true;
    stack_.push_back({op, cheapest_first(preds_[i])});
  }

  void visit(std::int32_t op) {
    enter(op);
    while (!stack_.empty()) {
      Frame& top = stack_.back();
      if (top.next < top.preds.size()) {
        enter(top.preds[top.next++]);
      } else {
        order_.emplace_back(top.op);
        stack_.pop_back();
      }
    }
  }

  std::vector<std::int64_t> moved_;
  const Csr& preds_;
  std::vector<bool> seen_;
  std::vector<Frame> stack_;
  std::vector<OpId> order_;
};

}  // namespace

std::vector<OpId> lpmf_order(const Graph& graph) {
  ListRule rule;
  rule.rank.resize(graph.ops.size());
  std::iota(rule.rank.begin(), rule.rank.end(), 0);
  rule.growth_breaks_ties = true;
  for (const Buffer& buffer : graph.buffers)
    if (buffer.returned) rule.first_peak_bytes += graph.padded(buffer.bytes);
  return list_schedule(graph, rule);
}

std::vector<OpId> bfs_order(const Graph& graph) {
  const Dependencies edges = dependencies(graph);
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> ready;
  std::vector<std::int32_t> waits, position(graph.ops.size(), -1);
  const auto push = [&](std::int32_t op) {
    Waiting entry{{}, op};
    for (const std::int32_t pred : edges.preds[static_cast<std::size_t>(op)])
      entry.positions.push_back(position[static_cast<std::size_t>(pred)]);
    std::sort(entry.positions.begin(), entry.positions.end());
    ready.push(std::move(entry));
  };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    waits.push_back(static_cast<std::int32_t>(edges.preds[i].size()));
    if (waits[i] == 0) push(static_cast<std::int32_t>(i));
  }
  std::vector<OpId> order;
  while (!ready.empty()) {
    const std::int32_t op = ready.top().op;
    ready.pop();
    position[static_cast<std::size_t>(op)] = static_cast<std::int32_t>(order.size());
    order.emplace_back(op);
    for (const std::int32_t next : edges.succs[static_cast<std::size_t>(op)])
      if (--waits[static_cast<std::size_t>(next)] == 0) push(next);
  }
  return order;
}

std::vector<OpId> dfs_order(const Graph& graph) {
  const Dependencies edges = dependencies(graph);
  return DepthFirst(graph, edges).run();
}

}  // namespace stowage::rivals
