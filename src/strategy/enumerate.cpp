#include "strategy/enumerate.h"

#include <algorithm>
#include <limits>

namespace stowage {
namespace {

class Enumeration {
 public:
  Enumeration(const StrategyProblem& problem, const ChoiceNetwork& network)
      : problem_(problem), network_(network), edges_(problem.nodes.size()), chosen_(problem.nodes.size(), 0) {
    for (std::size_t e = 0; e < problem.edges.size(); ++e)
      edges_[static_cast<std::size_t>(std::max(problem.edges[e].u, problem.edges[e].v))].push_back(e);
  }

  std::optional<std::vector<std::int32_t>> run() {
    descend();
    return std::move(best_);
  }

 private:
  // One label of each node at a time, without recursion: a problem may have many nodes of a single label.
  void descend() {
    const std::size_t nodes = problem_.nodes.size();
    std::vector<std::int32_t> label(nodes, -1);
    std::vector<std::int64_t> sum(nodes + 1, 0);
    std::size_t at = 0;
    for (;;) {
      if (at == nodes) {
        const std::optional<std::int64_t> cost = strategy_cost(problem_, chosen_);
        if (cost && *cost < least_) {
          least_ = *cost;
          best_ = chosen_;
        }
      } else if (++label[at] < network_.labels(static_cast<std::int32_t>(at))) {
        chosen_[at] = network_.strategy[static_cast<std::size_t>(network_.first[at] + label[at])];
        const std::optional<std::int64_t> own = own_cost(at);
        if (!own || sum[at] + *own >= least_) continue;
        sum[at + 1] = sum[at] + *own;
        ++at;
        continue;
      } else {
        label[at] = -1;
      }
      if (at-- == 0) return;
    }
  }

  // Of a node and its edges to the nodes before it; none: not allowed.
  [[nodiscard]] std::optional<std::int64_t> own_cost(std::size_t node) const {
    std::int64_t sum = problem_.nodes[node].costs[static_cast<std::size_t>(chosen_[node])];
    for (const std::size_t e : edges_[node]) {
      const StrategyEdge& edge = problem_.edges[e];
      const std::size_t columns = problem_.nodes[static_cast<std::size_t>(edge.v)].costs.size();
      const std::int64_t c = edge.costs[static_cast<std::size_t>(chosen_[static_cast<std::size_t>(edge.u)]) * columns +
                                        static_cast<std::size_t>(chosen_[static_cast<std::size_t>(edge.v)])];
      if (c >= kForbiddenCost) return std::nullopt;
      sum += c;
    }
    return sum;
  }

  const StrategyProblem& problem_;
  const ChoiceNetwork& network_;
  std::vector<std::vector<std::size_t>> edges_;  // per node: those to nodes before it
  std::vector<std::int32_t> chosen_;             // strategies
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
  std::optional<std::vector<std::int32_t>> best_;
};

}  // namespace

std::int64_t count_choices(const ChoiceNetwork& network, std::int64_t most) {
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < network.nodes() && count <= most; ++i) count *= network.labels(i);
  return std::min(count, most + 1);
}

std::optional<std::vector<std::int32_t>> cheapest_of_all(const StrategyProblem& problem, const ChoiceNetwork& network) {
  return Enumeration(problem, network).run();
}

}  // namespace stowage
