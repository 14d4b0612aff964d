#include "sharding/link_prices.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stowage {
namespace {

constexpr int kPriceRounds = 4;        // at prices that sum up to 1
constexpr double kStep = 2;            // a resource that is idle gets cheaper by exp(-kStep) a round
constexpr double kLeast = 0.01;        // of the even price: no way is free
constexpr double kKernelsAtEnd = 0.2;  // of the kernels' price, for the optimizer's; the rest is for what comes after
constexpr double kShareOfRound = 0.3;  // of the time that is left; the last round has all of it
constexpr double kShareOfFirst = 0.6;  // while there is no plan

Prices as_prices(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  const double kernels = weights[0] / sum, links = 1 - kernels;
  Prices prices{.kernels = kernels, .late_kernels = kKernelsAtEnd * kernels, .links = {}, .late_links = {}};
  for (std::size_t a = 1; a < weights.size(); ++a) {
    const double price = weights[a] / sum;
    prices.links.push_back(price);
    prices.late_links.push_back(price + (1 - kKernelsAtEnd) * kernels * price / links);
  }
  return prices;
}

// Prices that give no bound, as they count what is busy at the same time twice; plans that waste little on any link are
// often the fastest.
std::vector<Prices> wary_prices(std::size_t axes) {
  std::vector<Prices> all(1);  // the plain sum
  for (const double link : {1.0, 0.5})
    all.push_back({.kernels = 1,
                   .late_kernels = 1,
                   .links = std::vector<double>(axes, link),
                   .late_links = std::vector<double>(axes, 1)});
  return all;
}

void raise_busiest(std::vector<double>& weights, const std::vector<double>& loads) {
  const double most = *std::max_element(loads.begin(), loads.end());
  if (most <= 0) return;
  double sum = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) sum += weights[r] *= std::exp(kStep * (loads[r] / most - 1));
  for (double& weight : weights) weight = std::max(weight / sum, kLeast / static_cast<double>(weights.size()));
}

}  // namespace

std::vector<double> loads_of(const Space& space, const Choice& choice) {
  std::vector<double> loads(1 + space.mesh.axes.size(), 0);
  for (std::size_t h = 0; h < space.homes.size(); ++h)
    loads[0] += space.homes[h].ns[static_cast<std::size_t>(choice.homes[h])];
  const auto chosen = [&](std::int32_t u) -> const Strategy& {
    const SpaceUnit& unit = space.units[static_cast<std::size_t>(u)];
    return space.strategy(unit, unit.usable[static_cast<std::size_t>(choice.strategies[static_cast<std::size_t>(u)])]);
  };
  double late_kernels = 0;
  std::vector<double> late(space.mesh.axes.size(), 0);
  for (std::size_t u = 0; u < space.units.size(); ++u) {
    const auto unit_class = static_cast<std::size_t>(space.units[u].unit_class);
    (space.late[unit_class] != 0 ? late_kernels : loads[0]) +=
        space.quotient.units[unit_class].count * chosen(static_cast<std::int32_t>(u)).compute_ns;
  }
  for (const SpaceEdge& edge : space.edges) {
    const HomeClass& home = space.homes[space.home_of(edge)];
    const Code lives = space.home_code(edge, home.codes[static_cast<std::size_t>(choice.homes[space.home_of(edge)])]);
    const Code runs = (edge.output ? chosen(edge.unit).out : chosen(edge.unit).in)[static_cast<std::size_t>(edge.at)];
    if (lives == runs) continue;
    const auto carry = [&](Code from, Code to, bool is_late) {
      for (const Hop& hop : space.hops(edge.tensor_class, from, to)) {
        loads[1 + axis_of(hop)] += edge.count * (edge.waited ? hop.ns : hop.ns - latency_ns(hop, space.mesh));
        if (edge.waited) loads[0] += edge.count * hop.ns;
        if (is_late) late[axis_of(hop)] += edge.count * (hop.ns - latency_ns(hop, space.mesh));
      }
    };
    if (!edge.output) carry(lives, runs, false);
    if (edge.output || edge.written) carry(runs, lives, edge.late);
  }
  loads[0] += std::max(late_kernels, *std::max_element(late.begin(), late.end()));
  return loads;
}

Found find_overlapped(Search& search, double eps, double seconds, const Find& plan) {
  const bool timed = seconds > 0;
  const double end = search.seconds_of_all() + seconds;
  const std::size_t axes = search.space().mesh.axes.size();
  const std::vector<Prices> wary = wary_prices(axes);
  const std::size_t rounds = wary.size() + kPriceRounds;
  std::vector<double> weights(1 + axes, 1);
  Found best = search.known().homes.empty() ? search.nothing(Outcome::kUnknown)
                                            : search.as_plan(search.known(), search.budget(eps));
  double bound = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const double left = end - search.seconds_of_all();
    if (timed && round > 0 && left <= 0) break;
    const bool bounds = round >= wary.size();
    const double share = round + 1 == rounds ? 1 : best.plan.ops.empty() ? kShareOfFirst : kShareOfRound;
    search.begin(timed ? std::max(0.1, left * share) : 0, bounds ? as_prices(weights) : wary[round]);
    Found found = plan(search, eps);
    if (found.plan.ops.empty() && best.plan.ops.empty() && found.plan.time.outcome == Outcome::kInfeasible)
      return found;
    if (bounds) bound = std::max(bound, found.plan.time.bound);
    if (bounds && !found.plan.ops.empty()) raise_busiest(weights, loads_of(search.space(), found.choice));
    best = search.better(std::move(best), std::move(found));
    best.plan.time.bound = bound;
    if (best.plan.ops.empty()) continue;
    search.remember(best.choice, eps);
    best.plan.time.outcome = search.outcome_of(best.plan);
    if (best.plan.time.outcome == Outcome::kOptimal) break;
  }
  return best;
}

}  // namespace stowage
