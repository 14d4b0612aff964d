#include "report/moves.h"

#include <algorithm>
#include <map>
#include <queue>
#include <string>
#include <tuple>

#include "graph/dependencies.h"
#include "graph/ordered_graph.h"

namespace stowage::report {
namespace {

constexpr std::int64_t kUndoWork = 30'000'000;  // groups times ops and dependencies

// Per position of `order`: does its op stay?
std::vector<bool> staying(std::span<const OpId> order) {
  std::vector<std::int32_t> last, before(order.size(), -1);  // last[k]: position that ends the best run of k + 1
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto at = std::ranges::lower_bound(last, order[i], {},
                                             [&](std::int32_t p) { return order[static_cast<std::size_t>(p)]; });
    if (at != last.begin()) before[i] = *(at - 1);
    if (at == last.end()) {
      last.push_back(static_cast<std::int32_t>(i));
    } else {
      *at = static_cast<std::int32_t>(i);
    }
  }
  std::vector<bool> stays(order.size());
  for (std::int32_t p = last.empty() ? -1 : last.back(); p >= 0; p = before[static_cast<std::size_t>(p)])
    stays[static_cast<std::size_t>(p)] = true;
  return stays;
}

struct Group {
  std::vector<std::int32_t> positions;
  std::int64_t distance = 0;
};

class Mover {
 public:
  Mover(const Graph& graph, std::span<const OpId> order) : graph_(graph), order_(order), stays_(staying(order)) {}

  // By source line (the op's meta as it stands), target and direction; the ones that moved farthest in total first.
  std::vector<Group> groups() const {
    std::map<std::tuple<std::string, std::string, bool>, Group> found;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (stays_[i]) continue;
      const Op& op = graph_.op(order_[i]);
      const std::int64_t later = static_cast<std::int64_t>(i) - order_[i].value;
      Group& group = found[{op.meta, op.target, later > 0}];
      group.positions.push_back(static_cast<std::int32_t>(i));
      group.distance += std::abs(later);
    }
    std::vector<Group> list;
    for (auto& [key, group] : found) list.push_back(std::move(group));
    std::ranges::stable_sort(list, std::greater(), &Group::distance);
    return list;
  }

  // The order with one group back in its place.
  std::vector<OpId> without(const Group& group, const Dependencies& waits) const {
    std::vector<bool> back(order_.size());
    for (const std::int32_t p : group.positions) back[static_cast<std::size_t>(p)] = true;
    std::vector<OpId> line;  // what stays: increasing
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (stays_[i]) line.push_back(order_[i]);
    // Where each op wishes to be: behind so many that stay; then as in the program, or as it was.
    std::vector<std::tuple<std::int64_t, std::int64_t>> wish(graph_.ops.size());
    std::int64_t passed = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const OpId op = order_[i];
      if (stays_[i]) ++passed;
      const std::int64_t slot = back[i] ? std::ranges::lower_bound(line, op) - line.begin() : passed;
      wish[op.index()] = {slot,
                          back[i] ? static_cast<std::int64_t>(order_.size()) + op.value : static_cast<std::int64_t>(i)};
    }
    return nearest(wish, waits);
  }

 private:
  template <class Wish>
  std::vector<OpId> nearest(const std::vector<Wish>& wish, const Dependencies& waits) const {
    const auto later = [&](std::int32_t a, std::int32_t b) {
      return wish[static_cast<std::size_t>(a)] > wish[static_cast<std::size_t>(b)];
    };
    std::priority_queue<std::int32_t, std::vector<std::int32_t>, decltype(later)> ready(later);
    std::vector<std::size_t> open(graph_.ops.size());
    for (std::size_t i = 0; i < open.size(); ++i) {
      open[i] = waits.preds[i].size();
      if (open[i] == 0) ready.push(static_cast<std::int32_t>(i));
    }
    std::vector<OpId> result;
    while (!ready.empty()) {
      const OpId op(ready.top());
      ready.pop();
      result.push_back(op);
      for (const std::int32_t next : waits.succs[op])
        if (--open[static_cast<std::size_t>(next)] == 0) ready.push(next);
    }
    return result;
  }

  const Graph& graph_;
  std::span<const OpId> order_;
  std::vector<bool> stays_;
};

}  // namespace

std::vector<Decision> moves(const Graph& graph, std::span<const OpId> order, std::span<const std::int32_t> step,
                            std::int64_t order_peak) {
  const Mover mover(graph, order);
  const std::vector<Group> groups = mover.groups();
  if (groups.empty()) return {};
  const Dependencies waits = dependencies(graph);
  const auto each = static_cast<std::int64_t>(graph.ops.size() + 2 * waits.preds.items.size()) * 4;
  std::int64_t work = kUndoWork;
  std::vector<Decision> result;
  for (const Group& group : groups) {
    Decision move;
    move.kind = Decision::Kind::kMove;
    move.from = step[static_cast<std::size_t>(group.positions.front())];
    move.to = step[static_cast<std::size_t>(group.positions.back())] + 1;
    for (const std::int32_t p : group.positions) {
      move.ops.push_back(order[static_cast<std::size_t>(p)]);
      for (const BufferId b : graph.op(move.ops.back()).creates) move.bytes += graph.padded(graph.buffer(b).bytes);
    }
    if (work > 0) move.saved_bytes = peak_bytes(graph, mover.without(group, waits)) - order_peak;
    work -= each;
    result.push_back(std::move(move));
  }
  return result;
}

}  // namespace stowage::report
