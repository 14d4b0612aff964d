#include "strategy/choice_network.h"

#include <algorithm>
#include <limits>
#include <map>

namespace stowage {
namespace {

using Kept = std::vector<std::vector<char>>;  // [node][strategy]

// Of a merged edge: some edge forbids the pair
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Parallel edges are merged, and turned so that a < b. What all of them allow may add up to more than kForbiddenCost.
struct MergedEdge {
  std::int32_t a, b;
  std::vector<std::int64_t> costs;
};

std::vector<MergedEdge> merge_edges(const StrategyProblem& problem) {
  std::vector<MergedEdge> merged;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> known;
  for (const StrategyEdge& edge : problem.edges) {
    const auto [a, b] = std::minmax(edge.u, edge.v);
    const auto [place, fresh] = known.try_emplace({a, b}, merged.size());
    const std::size_t nu = problem.nodes[static_cast<std::size_t>(edge.u)].costs.size();
    const std::size_t nv = problem.nodes[static_cast<std::size_t>(edge.v)].costs.size();
    if (fresh) merged.push_back({a, b, std::vector<std::int64_t>(nu * nv, 0)});
    auto& costs = merged[place->second].costs;
    for (std::size_t s = 0; s < nu; ++s) {
      for (std::size_t t = 0; t < nv; ++t) {
        std::int64_t& sum = costs[edge.u == a ? s * nv + t : t * nu + s];
        const std::int64_t cost = edge.costs[s * nv + t];
        sum = sum == kNever || cost >= kForbiddenCost ? kNever : sum + cost;  // below 2^62: validate()
      }
    }
  }
  return merged;
}

// Drops the strategies of one side of an edge that the other side forbids altogether. True when it dropped any.
bool drop_unsupported(const MergedEdge& edge, Kept& kept) {
  auto& rows = kept[static_cast<std::size_t>(edge.a)];
  auto& columns = kept[static_cast<std::size_t>(edge.b)];
  std::vector<char> row_ok(rows.size(), 0), column_ok(columns.size(), 0);
  for (std::size_t s = 0; s < rows.size(); ++s) {
    if (!rows[s]) continue;
    for (std::size_t t = 0; t < columns.size(); ++t) {
      if (columns[t] && edge.costs[s * columns.size() + t] != kNever) row_ok[s] = column_ok[t] = 1;
    }
  }
  const bool changed = rows != row_ok || columns != column_ok;
  rows.swap(row_ok);
  columns.swap(column_ok);
  return changed;
}

Kept consistent_strategies(const StrategyProblem& problem, const std::vector<MergedEdge>& edges) {
  Kept kept;
  for (const StrategyNode& node : problem.nodes) {
    std::vector<char>& allowed = kept.emplace_back();
    for (std::size_t s = 0; s < node.costs.size(); ++s) {
      const bool too_much = problem.usage_limit && node.lower < node.upper && node.usages[s] > *problem.usage_limit;
      allowed.push_back(node.costs[s] < kForbiddenCost && !too_much);
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const MergedEdge& edge : edges) changed |= drop_unsupported(edge, kept);
  }
  return kept;
}

void add_labels(const StrategyProblem& problem, const Kept& kept, ChoiceNetwork& network) {
  for (std::size_t i = 0; i < problem.nodes.size(); ++i) {
    for (std::size_t s = 0; s < kept[i].size(); ++s) {
      if (!kept[i][s]) continue;
      network.cost.push_back(static_cast<double>(problem.nodes[i].costs[s]));
      network.usage.push_back(static_cast<double>(problem.nodes[i].usages[s]));
      network.strategy.push_back(static_cast<std::int32_t>(s));
    }
    network.first.push_back(static_cast<std::int32_t>(network.cost.size()));
    if (network.first.end()[-1] == network.first.end()[-2]) network.empty_domain = true;
  }
}

void add_edges(const std::vector<MergedEdge>& merged, const Kept& kept, ChoiceNetwork& network) {
  double dearest = 1;
  for (const double c : network.cost) dearest = std::max(dearest, c);
  Csr ends;
  for (const MergedEdge& edge : merged) {
    const auto& rows = kept[static_cast<std::size_t>(edge.a)];
    const auto& columns = kept[static_cast<std::size_t>(edge.b)];
    network.edges.push_back({edge.a, edge.b, network.pair_cost.size()});
    ends.items.insert(ends.items.end(), {edge.a, edge.b});
    ends.close_row();
    for (std::size_t s = 0; s < rows.size(); ++s) {
      for (std::size_t t = 0; t < columns.size(); ++t) {
        if (!rows[s] || !columns[t]) continue;
        const std::int64_t c = edge.costs[s * columns.size() + t];
        network.pair_cost.push_back(c == kNever ? std::numeric_limits<double>::infinity() : static_cast<double>(c));
        if (c != kNever) dearest = std::max(dearest, static_cast<double>(c));
      }
    }
  }
  network.penalty = 1e3 * dearest;
  for (double& c : network.pair_cost) c = std::min(c, network.penalty);
  network.touching = transpose(ends, static_cast<std::size_t>(network.nodes()));
}

// Times at which a node starts and no other does before one ends: there the live set is maximal.
std::vector<std::int64_t> maximal_times(const StrategyProblem& problem) {
  std::vector<std::pair<std::int64_t, int>> events;  // ends before starts at the same time
  for (const StrategyNode& node : problem.nodes) {
    if (node.lower >= node.upper) continue;
    events.emplace_back(node.lower, 1);
    events.emplace_back(node.upper, 0);
  }
  std::sort(events.begin(), events.end());
  std::vector<std::int64_t> times;
  for (std::size_t e = 0; e + 1 < events.size(); ++e) {
    if (events[e].second == 1 && events[e + 1].second == 0) times.push_back(events[e].first);
  }
  return times;
}

void add_rows(const StrategyProblem& problem, ChoiceNetwork& network) {
  const std::size_t n = problem.nodes.size();
  network.row_from.assign(n, 0);
  network.row_to.assign(n, 0);
  if (!problem.usage_limit) return;
  network.limit = static_cast<double>(*problem.usage_limit);
  const std::vector<std::int64_t> times = maximal_times(problem);
  std::vector<double> most(times.size() + 1, 0);
  const auto row = [&](std::int64_t time) {
    return std::lower_bound(times.begin(), times.end(), time) - times.begin();
  };
  const auto peak = [&](std::size_t i) {
    return *std::max_element(network.usage.begin() + network.first[i], network.usage.begin() + network.first[i + 1]);
  };
  for (std::size_t i = 0; i < n; ++i) {
    if (problem.nodes[i].lower >= problem.nodes[i].upper) continue;
    most[static_cast<std::size_t>(row(problem.nodes[i].lower))] += peak(i);
    most[static_cast<std::size_t>(row(problem.nodes[i].upper))] -= peak(i);
  }
  std::vector<std::int32_t> kept_before(times.size() + 1, 0);
  double live = 0;
  for (std::size_t t = 0; t < times.size(); ++t) {
    live += most[t];
    kept_before[t + 1] = kept_before[t] + (live > network.limit);
  }
  network.rows = kept_before.back();
  for (std::size_t i = 0; i < n; ++i) {
    if (problem.nodes[i].lower >= problem.nodes[i].upper) continue;
    network.row_from[i] = kept_before[static_cast<std::size_t>(row(problem.nodes[i].lower))];
    network.row_to[i] = kept_before[static_cast<std::size_t>(row(problem.nodes[i].upper))];
  }
}

}  // namespace

ChoiceNetwork make_network(const StrategyProblem& problem) {
  ChoiceNetwork network;
  const std::vector<MergedEdge> merged = merge_edges(problem);
  const Kept kept = consistent_strategies(problem, merged);
  add_labels(problem, kept, network);
  if (network.empty_domain) return network;
  add_edges(merged, kept, network);
  add_rows(problem, network);
  return network;
}

std::vector<std::int32_t> to_strategies(const ChoiceNetwork& network, const Labels& labels) {
  std::vector<std::int32_t> strategies(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    strategies[i] = network.strategy[static_cast<std::size_t>(network.first[i] + labels[i])];
  }
  return strategies;
}

std::vector<double> row_usage(const ChoiceNetwork& network, const Labels& labels) {
  std::vector<double> usage(static_cast<std::size_t>(network.rows) + 1, 0);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const double u = network.usage[static_cast<std::size_t>(network.first[i] + labels[i])];
    usage[static_cast<std::size_t>(network.row_from[i])] += u;
    usage[static_cast<std::size_t>(network.row_to[i])] -= u;
  }
  for (std::size_t t = 1; t < usage.size(); ++t) usage[t] += usage[t - 1];
  usage.pop_back();
  return usage;
}

}  // namespace stowage
