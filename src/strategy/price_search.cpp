#include "strategy/price_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "strategy/message_passing.h"

namespace stowage {
namespace {

constexpr int kWarmUp = 100;   // sweeps before prices move: messages settle first
constexpr int kWarmShare = 6;  // and at most this part of all
constexpr double kHope = 0.3;  // the bound may rise by this part: steps aim there
constexpr double kMomentum = 0.8;
constexpr double kFirstStep = 0.5, kShrink = 0.7;
constexpr int kPatience = 10;  // rounds without a better bound before steps shrink
// The last part of the rounds keeps the best prices, and then somewhat higher ones: messages settle, and labels that
// follow them forbid nothing and keep the limit.
constexpr int kFinishShare = 4;
constexpr double kAbove[] = {1, 1.1, 1.3};
constexpr double kBetter = 1e-5;  // of the bound: less is none

double overload(const ChoiceNetwork& network, const std::vector<double>& usage) {
  double sum = 0;
  for (const double u : usage) sum += std::max(0.0, u - network.limit);
  return sum;
}

// How far each row is over the limit, as a part of it. Labels that follow their neighbours and labels that each node
// takes alone err on different sides, so both count.
std::vector<double> excess(const ChoiceNetwork& network, const std::vector<double>& usage, const Labels& alone) {
  std::vector<double> excess = row_usage(network, alone);
  for (std::size_t t = 0; t < excess.size(); ++t) excess[t] = (excess[t] + usage[t]) / 2 / network.limit - 1;
  return excess;
}

// Deflected subgradient steps, from the best prices anew each time that they have found nothing better for a while.
class Ascent {
 public:
  Ascent(const ChoiceNetwork& network, std::vector<double>& prices)
      : limit_(network.limit), prices_(prices), direction_(prices.size(), 0) {}

  void note(double bound) {
    const bool better = bound > best_ + kBetter * std::abs(best_);
    in_vain_ = better ? 0 : in_vain_ + 1;
    best_ = std::max(best_, bound);
  }

  void move(const std::vector<double>& excess, double bound, const std::vector<double>& best_prices) {
    if (in_vain_ > kPatience) {
      step_ *= kShrink;
      in_vain_ = 0;
      prices_ = best_prices;
      return;
    }
    double square = 0;
    for (std::size_t t = 0; t < prices_.size(); ++t) {
      const bool free = prices_[t] <= 0;  // and cannot get cheaper
      direction_[t] = kMomentum * direction_[t] + (free ? std::max(excess[t], 0.0) : excess[t]);
      if (free) direction_[t] = std::max(direction_[t], 0.0);
      square += direction_[t] * direction_[t];
    }
    if (square <= 0) return;
    const double length = step_ * (best_ + kHope * std::abs(best_) - bound) / square / limit_;
    for (std::size_t t = 0; t < prices_.size(); ++t) prices_[t] = std::max(0.0, prices_[t] + length * direction_[t]);
  }

 private:
  double limit_;
  std::vector<double>& prices_;
  std::vector<double> direction_;
  double best_ = -std::numeric_limits<double>::max(), step_ = kFirstStep;
  int in_vain_ = 0;
};

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
  Ascent ascent(network, prices);
  const int finish = rounds / kFinishShare;
  const int warm_up = std::min(kWarmUp, rounds / kWarmShare);
  Labels labels;
  for (int round = 0; round < rounds; ++round) {
    const double bound = messages.sweep(labels) - std::accumulate(prices.begin(), prices.end(), 0.0) * network.limit;
    ascent.note(bound);
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
    if (should_stop && should_stop()) break;
    if (round < warm_up || network.rows == 0 || network.limit <= 0) continue;
    if (const int left = rounds - round; left <= finish) {
      const int turn = (finish - left) * static_cast<int>(std::size(kAbove)) / finish;
      prices = best.prices;
      for (double& price : prices) price *= kAbove[turn];
      messages.set_prices(prices);
    } else {
      ascent.move(excess(network, usage, messages.alone()), bound, best.prices);
      messages.set_prices(prices);
    }
  }
  return best;
}

}  // namespace stowage
