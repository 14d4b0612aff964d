// A strategy problem as the searches want it: what cannot be chosen is gone, what repeats is merged, what cannot bind
// is dropped.
//
//   problem   strategies  a b c d     forbidden d; c fits no strategy of a neighbour     labels  a b
//             edges       u-v, v-u    two between the same nodes                         one, their sum
//             times       ...|..|.    live sets that lie within another's, or always fit  the rest: rows
//
// A label is a strategy that survives arc consistency (Mackworth 1977): none of its neighbours forbids it altogether. A
// row is a time whose set of live nodes is maximal and could pass the limit. Costs are doubles: sums of integers below
// 2^53 are exact. A forbidden pair costs `penalty`: more than any allowed pair, yet finite, so that local search can
// walk through it, and bounds stay bounds. O(E + rounds of consistency x entries).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/csr.h"
#include "stowage/strategy.h"

namespace stowage {

struct ChoiceNetwork {
  struct Edge {
    std::int32_t a, b;  // a < b
    std::size_t at;     // entry (s, t) stands at pair_cost[at + s * labels(b) + t]
  };

  std::vector<std::int32_t> first{0};          // labels of node i: [first[i], first[i + 1])
  std::vector<double> cost, usage;             // per label
  std::vector<std::int32_t> strategy;          // per label: its place in the problem
  std::vector<std::int32_t> row_from, row_to;  // per node: the rows in which it counts
  std::int32_t rows = 0;
  double limit = 0;
  std::vector<Edge> edges;
  std::vector<double> pair_cost;
  Csr touching;               // edges of each node, increasing
  double penalty = 0;         // of a forbidden pair
  bool empty_domain = false;  // some node has no label left: nothing is allowed

  [[nodiscard]] std::int32_t nodes() const { return static_cast<std::int32_t>(first.size()) - 1; }
  [[nodiscard]] std::int32_t labels(std::int32_t node) const { return first[node + 1] - first[node]; }
  [[nodiscard]] const double* matrix(const Edge& edge) const { return pair_cost.data() + edge.at; }
  [[nodiscard]] std::int32_t other(const Edge& edge, std::int32_t node) const {
    return edge.a == node ? edge.b : edge.a;
  }
};

ChoiceNetwork make_network(const StrategyProblem& problem);

using Labels = std::vector<std::int32_t>;  // per node, counted from 0

std::vector<std::int32_t> to_strategies(const ChoiceNetwork& network, const Labels& labels);

// Usage in each row.
std::vector<double> row_usage(const ChoiceNetwork& network, const Labels& labels);

}  // namespace stowage
