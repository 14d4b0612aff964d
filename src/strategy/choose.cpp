// The road of a strategy problem: simplify, price, anneal, prove.
//
//   problem ──▶ choice_network ──▶ price_search ──▶ choice_milp ──────▶ tree_moves ──▶ result
//               what can bind  │   bound, start     small ones: proof   what is still open: better choices
//                              └─▶ enumerate: tiny ones, all choices
//
// All limits count entries of cost matrices looked at, so that the result repeats. (The integer program counts branch
// and bound nodes.) They grow with the problem, so that a small one never takes long.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/concat.h"
#include "stowage/error.h"
#include "stowage/strategy.h"
#include "strategy/choice_milp.h"
#include "strategy/choice_network.h"
#include "strategy/enumerate.h"
#include "strategy/price_search.h"
#include "strategy/tree_moves.h"

namespace stowage {
namespace {

constexpr int kPriceRounds = 600;
constexpr int kAnnealingRounds = 12;
constexpr std::int64_t kLooks = 200'000;  // at each entry in all of annealing
constexpr std::int64_t kMostCost = std::int64_t{1} << 62;

// A double bound, made safe against its own rounding. A search that was stopped early may know none (-inf).
std::int64_t rounded_bound(double bound) {
  constexpr auto most = static_cast<double>(kMostCost);
  if (!(bound > -most)) return -kMostCost;
  return static_cast<std::int64_t>(std::min(most, std::ceil(bound - 1e-6 * std::max(1.0, std::abs(bound)))));
}

// Even the least usage passes the limit somewhere.
bool never_fits(const ChoiceNetwork& network) {
  Labels least(static_cast<std::size_t>(network.nodes()), 0);
  for (std::int32_t i = 0; i < network.nodes(); ++i) {
    const auto from = network.usage.begin() + network.first[i];
    least[i] = static_cast<std::int32_t>(std::min_element(from, network.usage.begin() + network.first[i + 1]) - from);
  }
  const std::vector<double> usage = row_usage(network, least);
  return std::any_of(usage.begin(), usage.end(), [&](double u) { return u > network.limit; });
}

int price_rounds(const ChoiceNetwork& network, std::int64_t work_limit) {
  const auto sweep = static_cast<std::int64_t>(3 * network.pair_cost.size() + network.cost.size() + 1);
  return static_cast<int>(std::clamp<std::int64_t>(work_limit / 2 / sweep, 2, kPriceRounds));
}

void keep_better(const StrategyProblem& problem, const ChoiceNetwork& network, const Labels& labels,
                 StrategyResult& result) {
  if (labels.empty()) return;
  std::vector<std::int32_t> strategies = to_strategies(network, labels);
  const auto cost = strategy_cost(problem, strategies);
  if (!cost || (!result.strategies.empty() && *cost >= result.cost)) return;
  result.strategies = std::move(strategies);
  result.cost = *cost;
}

// Sets the result's strategies, cost; leaves the bound alone.
void anneal(const StrategyProblem& problem, const ChoiceNetwork& network, const PricedStart& start,
            const StrategyOptions& options, StrategyResult& result) {
  const std::int64_t work = std::min(
      options.work_limit / 2, kLooks * static_cast<std::int64_t>(network.pair_cost.size() + network.cost.size()));
  TreeMoves moves(network, start, options.seed);
  for (int round = 0; round < kAnnealingRounds && (result.strategies.empty() || result.cost > result.bound); ++round) {
    if (options.should_stop && options.should_stop()) break;
    moves.round(work / kAnnealingRounds, options.should_stop);
    keep_better(problem, network, moves.best(), result);
  }
}

Labels to_labels(const ChoiceNetwork& network, const std::vector<std::int32_t>& strategies) {
  Labels labels(strategies.size());
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    const auto from = network.strategy.begin() + network.first[i];
    labels[i] = static_cast<std::int32_t>(std::find(from, network.strategy.end(), strategies[i]) - from);
  }
  return labels;
}

void prove(const StrategyProblem& problem, const ChoiceNetwork& network, const StrategyOptions& options,
           StrategyResult& result) {
  const MilpChoice choice = solve_choice(network, to_labels(network, result.strategies), options.should_stop);
  if (choice.outcome == Outcome::kInfeasible) result.outcome = Outcome::kInfeasible;
  if (choice.outcome == Outcome::kOptimal || choice.outcome == Outcome::kFeasible) {
    result.bound = std::max(result.bound, rounded_bound(choice.bound));
  }
  keep_better(problem, network, choice.labels, result);
}

void settle(StrategyResult& result) {
  if (result.strategies.empty()) return;
  result.bound = std::min(result.bound, result.cost);
  result.outcome = result.cost == result.bound ? Outcome::kOptimal : Outcome::kFeasible;
}

}  // namespace

double StrategyResult::gap() const {
  if (cost == bound) return 0;
  return bound > 0 ? static_cast<double>(cost) / static_cast<double>(bound) - 1
                   : std::numeric_limits<double>::infinity();
}

std::optional<std::int64_t> strategy_cost(const StrategyProblem& problem, const std::vector<std::int32_t>& strategies) {
  const auto chosen = [&](std::int32_t node) {
    return static_cast<std::size_t>(strategies[static_cast<std::size_t>(node)]);
  };
  std::int64_t sum = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;  // (time, bytes)
  for (std::size_t i = 0; i < problem.nodes.size(); ++i) {
    const StrategyNode& node = problem.nodes[i];
    const std::size_t s = chosen(static_cast<std::int32_t>(i));
    if (node.costs[s] >= kForbiddenCost) return std::nullopt;
    sum += node.costs[s];
    if (node.lower < node.upper) {
      changes.emplace_back(node.lower, node.usages[s]);
      changes.emplace_back(node.upper, -node.usages[s]);
    }
  }
  for (const StrategyEdge& edge : problem.edges) {
    const std::int64_t c =
        edge.costs[chosen(edge.u) * problem.nodes[static_cast<std::size_t>(edge.v)].costs.size() + chosen(edge.v)];
    if (c >= kForbiddenCost) return std::nullopt;
    sum += c;
  }
  std::sort(changes.begin(), changes.end());  // at one time, what ends goes first
  std::int64_t usage = 0;
  for (const auto& [time, bytes] : changes) {
    usage += bytes;
    if (problem.usage_limit && usage > *problem.usage_limit) return std::nullopt;
  }
  return sum;
}

void validate(const StrategyProblem& problem) {
  // Adds the largest value below `limit`; false when the sum reaches kMostCost.
  const auto add = [](std::int64_t& sum, const std::vector<std::int64_t>& values, std::int64_t limit) {
    std::int64_t most = 0;
    for (const std::int64_t value : values)
      if (value < limit) most = std::max(most, value);
    sum += std::min(most, kMostCost - sum);
    return sum < kMostCost;
  };
  std::int64_t cost = 0, usage = 0;
  for (std::size_t i = 0; i < problem.nodes.size(); ++i) {
    if (!add(cost, problem.nodes[i].costs, kForbiddenCost))
      throw Error(concat("node ", i, ": costs: the largest allowed ones add up to 2^62"));
    if (!add(usage, problem.nodes[i].usages, kMostCost))
      throw Error(concat("node ", i, ": usages: the largest ones add up to 2^62"));
  }
  for (std::size_t e = 0; e < problem.edges.size(); ++e)
    if (!add(cost, problem.edges[e].costs, kForbiddenCost))
      throw Error(concat("edge ", e, ": costs: the largest allowed ones add up to 2^62"));
}

StrategyResult choose_strategies(const StrategyProblem& problem, const StrategyOptions& options) {
  validate(problem);
  StrategyResult result;
  const ChoiceNetwork network = make_network(problem);
  if (network.empty_domain || never_fits(network)) {
    result.outcome = Outcome::kInfeasible;
    return result;
  }
  if (network.nodes() == 0) {
    result.outcome = Outcome::kOptimal;
    return result;
  }
  if (count_choices(network, options.enumeration_limit) <= options.enumeration_limit) {
    std::optional<std::vector<std::int32_t>> cheapest = cheapest_of_all(problem, network);
    result.outcome = cheapest ? Outcome::kOptimal : Outcome::kInfeasible;
    if (!cheapest) return result;
    result.cost = result.bound = *strategy_cost(problem, *cheapest);
    result.strategies = std::move(*cheapest);
    return result;
  }
  const PricedStart start = search_prices(network, price_rounds(network, options.work_limit), options.should_stop);
  result.bound = rounded_bound(start.bound);
  keep_better(problem, network, start.labels, result);

  const auto closed = [&] { return !result.strategies.empty() && result.cost <= result.bound; };
  const auto stopped = [&] { return options.should_stop && options.should_stop(); };
  if (!closed() && !stopped() && fits_milp(network)) prove(problem, network, options, result);
  if (!closed() && !stopped() && result.outcome != Outcome::kInfeasible)
    anneal(problem, network, start, options, result);
  settle(result);
  return result;
}

}  // namespace stowage
