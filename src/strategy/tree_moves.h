// Tree moves: a random tree of nodes chooses anew, all at once and exactly, while the rest stands still.
//
//        o───●───●        ● the tree: grown from a random node, no cycle within it; dynamic programming over it gives the cheapest
//        │   │            labels given the o around it, bytes over the limit priced
//        o   ●───o        taken when cost + weight * overload falls, or by chance when it rises a little
//
// Tree sampling after Hamze and de Freitas, UAI 2004, as large neighbourhoods; accepted as in simulated annealing
// (Kirkpatrick et al. 1983). A round starts hot, with overload cheap, and ends cold, with overload dear: it slides from
// relaxed choices to those that keep the limit. Every third one begins at the best choice and stays nearer to it. Half
// of the moves pay for bytes what the bound says that they are worth. Forbidden pairs chain many nodes together, which is why single-node
// moves get stuck at once and trees do not. A move costs the matrices that touch the tree.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "strategy/price_search.h"

namespace stowage {

class TreeMoves {
 public:
  // The network and the start stay where they are.
  TreeMoves(const ChoiceNetwork& network, const PricedStart& start, std::uint64_t seed);

  // One round of annealing that costs about `work` entries. Returns what it cost.
  std::int64_t round(std::int64_t work, const std::function<bool()>& should_stop);

  [[nodiscard]] const Labels& best() const { return best_; }  // empty: no choice met that keeps the limit
  [[nodiscard]] double best_cost() const { return best_cost_; }

 private:
  struct Branch {
    std::int32_t node, parent, edge;  // parent -1 at the root
  };

  void set_heat(double done);
  void draw_prices();
  void grow(std::size_t size);
  void join(std::int32_t node, std::int32_t parent, std::int32_t edge);
  void own_costs(const Branch& branch, std::vector<double>& costs);
  void choose();
  void add_usage(double sign);
  [[nodiscard]] double tree_cost() const;
  bool move();

  const ChoiceNetwork& network_;
  const std::vector<double>& prices_;  // per row: what its bytes are worth by the bound
  Labels labels_, best_;
  double best_cost_;
  double cost_, overload_ = 0;
  double unit_, weight_ = 1, heat_ = 0;
  std::vector<double> usage_, price_before_;  // per row; prices of the rows before each
  std::mt19937_64 random_;
  std::int64_t work_ = 0, rounds_ = 0;
  bool far_ = true;  // this round wanders far, from where the last one ended

  std::vector<Branch> tree_;
  std::vector<std::int32_t> place_, links_, touched_;  // per node: its place in the tree or -1, its edges into the tree
  std::vector<std::pair<std::int32_t, std::int32_t>> fringe_;  // (node, edge into the tree)
  std::vector<std::vector<double>> costs_;                     // per branch
  std::vector<std::vector<std::int32_t>> answers_;             // per branch: its label for each label of its parent
};

}  // namespace stowage
