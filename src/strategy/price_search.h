// Prices for bytes: each row gets a price per byte, and what the cheapest labels cost then, less the price of the
// limit, bounds every choice that keeps the limit.
//
//   usage  ▂▇▇▅▂        prices  0 λ λ 0 0        labels, cheapest with bytes paid for: under the limit where it was over
//   limit  ─────   ──▶                    ──▶
//
// The dual of the limit (Lagrangian relaxation; Fisher, Management Science 27, 1981). Without prices first, until the
// messages have settled; then by subgradient steps whose direction remembers those before (Camerini, Fratta, Maffioli,
// Mathematical Programming Study 3, 1975) and whose length aims at a bound somewhat above the best one (Polyak, USSR
// Computational Mathematics 9, 1969). Every round gives a bound, and a labelling that is nearly cheapest at these
// prices: the start for tree_moves.h. A round costs one sweep of message_passing.h.
#pragma once

#include <cstdint>
#include <functional>

#include "strategy/choice_network.h"

namespace stowage {

struct PricedStart {
  Labels labels;               // least cost plus overload priced at `unit`
  double bound = 0;            // on the cost of every choice that keeps the limit
  double unit = 1;             // what a byte over the limit is worth: cost units a byte
  std::vector<double> prices;  // of the best bound
};

PricedStart search_prices(const ChoiceNetwork& network, int rounds, const std::function<bool()>& should_stop);

// Sum of node and pair costs; forbidden pairs at the penalty.
double label_cost(const ChoiceNetwork& network, const Labels& labels);

}  // namespace stowage
