#include "strategy/price_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "strategy/message_passing.h"

namespace stowage {
namespace {

constexpr int kWarmUp = 10;           // sweeps before prices move: messages settle first
constexpr double kFade = 0.97;        // of the price of a row with room
constexpr double kRoom = 0.8;         // of the limit: below it a row has room
constexpr double kFirstPrice = 0.01;  // of the price at which a full row costs the whole bound

double overload(const ChoiceNetwork& network, const std::vector<double>& usage) {
  double sum = 0;
  for (const double u : usage) sum += std::max(0.0, u - network.limit);
  return sum;
}

// Steps shrink with the rounds, so that prices settle and the bound with them.
void move_prices(const ChoiceNetwork& network, const std::vector<double>& usage, double unit, int round,
                 std::vector<double>& prices) {
  const double rise = 1 + 0.3 / (1 + round / 150.0);
  const double fade = std::pow(kFade, 1 / (1 + round / 150.0));
  for (std::size_t t = 0; t < prices.size(); ++t) {
    if (usage[t] > network.limit) {
      prices[t] = std::max(prices[t] * rise, kFirstPrice * unit);
    } else if (usage[t] < kRoom * network.limit) {
      prices[t] *= fade;
    }
  }
}

}  // namespace

double label_cost(const ChoiceNetwork& network, const Labels& labels) {
  double sum = 0;
  for (std::int32_t i = 0; i < network.nodes(); ++i) sum += network.cost[network.first[i] + labels[i]];
  for (const ChoiceNetwork::Edge& edge : network.edges) {
    sum += network.matrix(edge)[labels[edge.a] * network.labels(edge.b) + labels[edge.b]];
  }
  return sum;
}

PricedStart search_prices(const ChoiceNetwork& network, int rounds, const std::function<bool()>& should_stop) {
  PricedStart best;
  best.bound = -std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  MessagePassing messages(network);
  std::vector<double> prices(static_cast<std::size_t>(network.rows), 0);
  best.prices = prices;
  Labels labels;
  for (int round = 0; round < rounds; ++round) {
    const double bound = messages.sweep(labels) - std::accumulate(prices.begin(), prices.end(), 0.0) * network.limit;
    if (bound > best.bound) {
      best.bound = bound;
      best.prices = prices;
      if (network.limit > 0) best.unit = std::max(1.0, bound) / network.limit;
    }
    const std::vector<double> usage = row_usage(network, labels);
    const double energy = label_cost(network, labels) + best.unit * 10 * overload(network, usage);
    if (energy < least) {
      least = energy;
      best.labels = labels;
    }
    if (round >= kWarmUp && network.rows > 0) {
      move_prices(network, usage, best.unit, round - kWarmUp, prices);
      messages.set_prices(prices);
    }
    if (should_stop && should_stop()) break;
  }
  return best;
}

}  // namespace stowage
