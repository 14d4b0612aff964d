#include "sharding/settle.h"

#include <algorithm>

namespace stowage {
namespace {

constexpr int kRounds = 6;
constexpr double kTie = 1e-9;  // sums in another order are equal up to this

class Settler {
 public:
  Settler(const Space& space, Choice& choice) : space_(space), choice_(choice) {}

  void strategies() {
    std::vector<std::vector<double>> ns(space_.units.size());
    for (std::size_t u = 0; u < ns.size(); ++u)
      for (const std::int32_t k : space_.units[u].usable)
        ns[u].push_back(space_.unit_price(space_.units[u],
                                          count_of(space_.units[u]) * space_.strategy(space_.units[u], k).compute_ns));
    for (const SpaceEdge& edge : space_.edges) {
      const auto u = static_cast<std::size_t>(edge.unit);
      if (keeps_unit(u)) continue;
      const std::size_t h = space_.home_of(edge);
      const Code home = space_.home_code(edge, space_.homes[h].codes[static_cast<std::size_t>(choice_.homes[h])]);
      const std::vector<Code> codes = space_.unit_codes(edge);
      for (std::size_t i = 0; i < codes.size(); ++i) ns[u][i] += edge.count * space_.edge_price(edge, home, codes[i]);
    }
    for (std::size_t u = 0; u < ns.size(); ++u)
      if (!keeps_unit(u))
        choice_.strategies[u] = static_cast<std::int32_t>(std::min_element(ns[u].begin(), ns[u].end()) - ns[u].begin());
  }

  void homes() {
    std::vector<std::vector<const SpaceEdge*>> edges(space_.homes.size());
    std::vector<char> charged(space_.homes.size(), 0);
    for (const SpaceEdge& edge : space_.edges) {
      edges[space_.home_of(edge)].push_back(&edge);
      if (space_.unit_of(edge).charged) charged[space_.home_of(edge)] = 1;
    }
    for (std::size_t h = 0; h < space_.homes.size(); ++h)
      if (charged[h] == 0 && !keeps_home(h)) choice_.homes[h] = cheapest(space_.homes[h], edges[h]);
  }

 private:
  [[nodiscard]] bool keeps_unit(std::size_t u) const {
    return space_.units[u].charged || (!choice_.keep_unit.empty() && choice_.keep_unit[u] != 0);
  }
  [[nodiscard]] bool keeps_home(std::size_t h) const {
    const auto& bytes = space_.homes[h].bytes;
    return (!choice_.keep_home.empty() && choice_.keep_home[h] != 0) ||
           std::any_of(bytes.begin(), bytes.end(), [](double b) { return b > 0; });
  }
  [[nodiscard]] double count_of(const SpaceUnit& unit) const {
    return space_.quotient.units[static_cast<std::size_t>(unit.unit_class)].count;
  }
  [[nodiscard]] const Strategy& chosen(const SpaceEdge& edge) const {
    const SpaceUnit& unit = space_.unit_of(edge);
    return space_.strategy(
        unit, unit.usable[static_cast<std::size_t>(choice_.strategies[static_cast<std::size_t>(edge.unit)])]);
  }
  static Code end_of(const SpaceEdge& edge, const Strategy& strategy) {
    return (edge.output ? strategy.out : strategy.in)[static_cast<std::size_t>(edge.at)];
  }

  [[nodiscard]] std::int32_t cheapest(const HomeClass& home, const std::vector<const SpaceEdge*>& edges) const {
    std::vector<double> ns;
    for (std::size_t i = 0; i < home.codes.size(); ++i) ns.push_back(space_.home_price(home, i));
    for (std::size_t i = 0; i < ns.size(); ++i)
      for (const SpaceEdge* edge : edges)
        ns[i] += edge->count *
                 space_.edge_price(*edge, space_.home_code(*edge, home.codes[i]), end_of(*edge, chosen(*edge)));
    const double least = *std::min_element(ns.begin(), ns.end()) * (1 + kTie);
    std::int32_t best = -1;
    std::int64_t fewest = 0;
    for (std::size_t i = 0; i < ns.size(); ++i) {
      if (ns[i] > least) continue;
      const std::int64_t bytes = largest_bytes(space_.example(home.root), home.codes[i], space_.mesh);
      if (best < 0 || bytes < fewest) best = static_cast<std::int32_t>(i), fewest = bytes;
    }
    return best;
  }

  const Space& space_;
  Choice& choice_;
};

}  // namespace

void settle_strategies(const Space& space, Choice& choice) { Settler(space, choice).strategies(); }

void settle_homes(const Space& space, Choice& choice) { Settler(space, choice).homes(); }

void settle(const Space& space, Choice& choice) {
  settle_strategies(space, choice);
  for (int round = 0; round < kRounds; ++round) {
    const Choice before = choice;
    settle_homes(space, choice);
    settle_strategies(space, choice);
    if (choice.homes == before.homes && choice.strategies == before.strategies) break;
  }
}

}  // namespace stowage
