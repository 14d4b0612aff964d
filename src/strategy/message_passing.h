// Sequential tree-reweighted message passing: a lower bound on the cheapest labelling, and labellings that follow it.
//
//   sweep forward          node by node in id order; each gathers what its neighbours say, passes its share on
//   0 ──▶ 1 ──▶ 2          message(s → t) = min over labels of the sender of its share + the pair's cost
//     ╲─────────▶          sweep back the other way; what the messages take off adds up to the bound
//
// Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 28, 2006. The node costs carry
// a price per byte of usage on top: for any prices >= 0, bound - sum(prices) * limit bounds the cheapest choice that
// keeps the limit (Lagrangian relaxation). A sweep costs one look at each matrix entry.
#pragma once

#include <vector>

#include "strategy/choice_network.h"

namespace stowage {

class MessagePassing {
 public:
  explicit MessagePassing(const ChoiceNetwork& network);

  // Node costs from now on: cost + usage * (sum of the prices of the node's rows).
  void set_prices(const std::vector<double>& prices);

  // Sweeps forward, and back. Writes to `labels` the labelling that the sweep forward implies when each node decides
  // after its lower neighbours. Returns a bound on the cheapest labelling under the present node costs.
  double sweep(Labels& labels);
  // Of the last sweep: what each node takes by what it has gathered, whatever its neighbours take.
  [[nodiscard]] const Labels& alone() const { return alone_; }

 private:
  void gather(std::int32_t node);
  void decide(std::int32_t node, Labels& labels) const;
  double send(std::int32_t node, bool forward);

  const ChoiceNetwork& network_;
  std::vector<double> priced_;  // per label
  Labels alone_;
  std::vector<std::size_t> to_b_, to_a_;  // per edge: where its messages stand
  std::vector<double> message_to_b_, message_to_a_;
  std::vector<std::int32_t> lower_degree_;  // per node: edges to nodes before it
  std::vector<double> gathered_, share_;    // of the node at work
};

}  // namespace stowage
