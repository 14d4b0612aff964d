#include "strategy/tree_moves.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace stowage {
namespace {

constexpr int kMovesPerDraw = 64;  // moves between two draws of prices
constexpr int kTreeSizes = 10;     // trees of 2, 4, ... 2^10 nodes
constexpr double kHottest = 1e-2;  // of the best cost: the rise that is taken by chance at first
constexpr double kWarm = 2e-3;     // the same, for a round that begins at the best choice
constexpr double kSlack = 1e-6;    // bytes: rounding of sums

double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

}  // namespace

TreeMoves::TreeMoves(const ChoiceNetwork& network, const PricedStart& start, std::uint64_t seed)
    : network_(network),
      prices_(start.prices),
      labels_(start.labels),
      best_cost_(std::numeric_limits<double>::infinity()),
      cost_(label_cost(network, labels_)),
      unit_(start.unit),
      usage_(row_usage(network, labels_)),
      random_(seed) {
  for (const double u : usage_) overload_ += std::max(0.0, u - network.limit);
  const auto nodes = static_cast<std::size_t>(network.nodes());
  place_.assign(nodes, -1);
  links_.assign(nodes, 0);
  if (overload_ <= kSlack && cost_ < network.penalty) {
    best_ = labels_;
    best_cost_ = cost_;
  }
}

// From relaxed and hot (done = 0) to strict and cold (done = 1).
void TreeMoves::set_heat(double done) {
  weight_ = unit_ * std::pow(10.0, far_ ? -1 + 3 * done : 2 * done);
  const double scale = std::isfinite(best_cost_) ? best_cost_ : std::min(cost_, network_.penalty);
  heat_ = scale * (far_ ? kHottest : kWarm) * (1 - done) * (1 - done);
}

// Trees look at bytes before the limit does: at none, at rows that are nearly full by a random price, or at all by
// about the price that the bound gives them.
void TreeMoves::draw_prices() {
  const std::uint64_t kind = random_() % 4;
  price_before_.assign(usage_.size() + 1, 0);
  work_ += static_cast<std::int64_t>(usage_.size());
  if (kind >= 2) {
    const double times = std::pow(2.0, -1 + 2 * uniform(random_));
    for (std::size_t t = 0; t < usage_.size(); ++t) price_before_[t + 1] = price_before_[t] + times * prices_[t];
    return;
  }
  const double height = kind == 0 ? 0 : unit_ * std::pow(10.0, -2 + 4 * uniform(random_));
  const double full = (0.3 + 0.65 * uniform(random_)) * network_.limit;
  for (std::size_t t = 0; t < usage_.size(); ++t) {
    price_before_[t + 1] = price_before_[t] + (usage_[t] > full ? height * usage_[t] / network_.limit : 0);
  }
}

void TreeMoves::join(std::int32_t node, std::int32_t parent, std::int32_t edge) {
  place_[node] = static_cast<std::int32_t>(tree_.size());
  tree_.push_back({node, parent, edge});
  for (const std::int32_t e : network_.touching[static_cast<std::size_t>(node)]) {
    const std::int32_t other = network_.other(network_.edges[e], node);
    if (links_[other]++ == 0) touched_.push_back(other);
    if (place_[other] < 0) fringe_.emplace_back(other, e);
  }
}

// A random tree: a node joins only while exactly one edge ties it to the tree.
void TreeMoves::grow(std::size_t size) {
  for (const Branch& branch : tree_) place_[branch.node] = -1;
  for (const std::int32_t node : touched_) links_[node] = 0;
  tree_.clear(), touched_.clear(), fringe_.clear();
  join(static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(network_.nodes())), -1, -1);
  while (tree_.size() < size && !fringe_.empty()) {
    const std::size_t pick = random_() % fringe_.size();
    const auto [node, edge] = fringe_[pick];
    fringe_[pick] = fringe_.back();
    fringe_.pop_back();
    if (place_[node] < 0 && links_[node] == 1) join(node, network_.other(network_.edges[edge], node), edge);
  }
}

// Adds (or takes away) the tree's bytes, and keeps the overload true.
void TreeMoves::add_usage(double sign) {
  for (const Branch& branch : tree_) {
    const double u = sign * network_.usage[network_.first[branch.node] + labels_[branch.node]];
    if (u == 0) continue;
    for (std::int32_t t = network_.row_from[branch.node]; t < network_.row_to[branch.node]; ++t) {
      overload_ -= std::max(0.0, usage_[t] - network_.limit);
      usage_[t] += u;
      overload_ += std::max(0.0, usage_[t] - network_.limit);
    }
    work_ += network_.row_to[branch.node] - network_.row_from[branch.node];
  }
}

// What each label of a node costs with everything outside the tree as it stands.
void TreeMoves::own_costs(const Branch& branch, std::vector<double>& costs) {
  const std::int32_t node = branch.node, from = network_.first[node];
  costs.assign(network_.cost.begin() + from, network_.cost.begin() + network_.first[node + 1]);
  if (network_.row_from[node] < network_.row_to[node]) {
    const double price = price_before_[network_.row_to[node]] - price_before_[network_.row_from[node]];
    const double fullest =
        *std::max_element(usage_.begin() + network_.row_from[node], usage_.begin() + network_.row_to[node]);
    for (std::size_t s = 0; s < costs.size(); ++s) {
      const double u = network_.usage[from + static_cast<std::int32_t>(s)];
      costs[s] += price * u + weight_ * std::max(0.0, u - (network_.limit - fullest));
    }
  }
  for (const std::int32_t e : network_.touching[static_cast<std::size_t>(node)]) {
    const ChoiceNetwork::Edge& edge = network_.edges[e];
    const std::int32_t other = network_.other(edge, node);
    if (place_[other] >= 0) continue;
    const double* matrix = network_.matrix(edge);
    const std::int32_t columns = network_.labels(edge.b);
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(costs.size()); ++s) {
      costs[s] += edge.a == node ? matrix[s * columns + labels_[other]] : matrix[labels_[other] * columns + s];
    }
    work_ += static_cast<std::int64_t>(costs.size());
  }
}

// The cheapest labels of the tree, leaves first.
void TreeMoves::choose() {
  costs_.resize(std::max(costs_.size(), tree_.size()));
  answers_.resize(costs_.size());
  for (std::size_t q = 0; q < tree_.size(); ++q) own_costs(tree_[q], costs_[q]);
  for (std::size_t q = tree_.size() - 1; q > 0; --q) {
    const Branch& branch = tree_[q];
    const ChoiceNetwork::Edge& edge = network_.edges[branch.edge];
    const double* matrix = network_.matrix(edge);
    const std::size_t columns = static_cast<std::size_t>(network_.labels(edge.b));
    const std::vector<double>& mine = costs_[q];
    std::vector<double>& theirs = costs_[static_cast<std::size_t>(place_[branch.parent])];
    answers_[q].resize(theirs.size());
    for (std::size_t t = 0; t < theirs.size(); ++t) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t s = 0; s < mine.size(); ++s) {
        const double c = mine[s] + (edge.a == branch.node ? matrix[s * columns + t] : matrix[t * columns + s]);
        if (c < least) {
          least = c;
          answers_[q][t] = static_cast<std::int32_t>(s);
        }
      }
      theirs[t] += least;
    }
    work_ += static_cast<std::int64_t>(mine.size() * theirs.size());
  }
  labels_[tree_[0].node] =
      static_cast<std::int32_t>(std::min_element(costs_[0].begin(), costs_[0].end()) - costs_[0].begin());
  for (std::size_t q = 1; q < tree_.size(); ++q) {
    labels_[tree_[q].node] = answers_[q][static_cast<std::size_t>(labels_[tree_[q].parent])];
  }
}

// Cost of the tree's nodes and of every edge that touches them.
double TreeMoves::tree_cost() const {
  double sum = 0;
  for (const Branch& branch : tree_) {
    const std::int32_t node = branch.node;
    sum += network_.cost[network_.first[node] + labels_[node]];
    for (const std::int32_t e : network_.touching[static_cast<std::size_t>(node)]) {
      const ChoiceNetwork::Edge& edge = network_.edges[e];
      const std::int32_t other = network_.other(edge, node);
      if (place_[other] >= 0 && other < node) continue;  // counted at the other end
      sum += network_.matrix(edge)[labels_[edge.a] * network_.labels(edge.b) + labels_[edge.b]];
    }
  }
  return sum;
}

bool TreeMoves::move() {
  grow(std::size_t{2} << random_() % kTreeSizes);
  const double cost_before = tree_cost(), overload_before = overload_;
  std::vector<std::int32_t> labels_before;
  for (const Branch& branch : tree_) labels_before.push_back(labels_[branch.node]);
  add_usage(-1);
  choose();
  add_usage(1);
  const double rise = tree_cost() - cost_before;
  const double worse = rise + weight_ * (overload_ - overload_before);
  if (worse <= 0 || (heat_ > 0 && uniform(random_) < std::exp(-worse / heat_))) {
    cost_ += rise;
    return true;
  }
  add_usage(-1);
  for (std::size_t q = 0; q < tree_.size(); ++q) labels_[tree_[q].node] = labels_before[q];
  add_usage(1);
  return false;
}

std::int64_t TreeMoves::round(std::int64_t work, const std::function<bool()>& should_stop) {
  work_ = 0;
  far_ = rounds_++ % 3 != 2 || best_.empty();
  if (!far_) {
    labels_ = best_;
    cost_ = best_cost_;
  }
  for (int moves = 0; work_ < work; ++moves) {
    if (moves % kMovesPerDraw == 0) {
      if (should_stop && should_stop()) break;
      set_heat(std::min(1.0, static_cast<double>(work_) / static_cast<double>(work)));
      draw_prices();
      usage_ = row_usage(network_, labels_);  // sums of many steps drift; these are exact
      overload_ = 0;
      for (const double u : usage_) overload_ += std::max(0.0, u - network_.limit);
    }
    work_ += 16;
    if (move() && overload_ <= kSlack && cost_ < best_cost_ - 0.5 && cost_ < network_.penalty) {
      best_cost_ = cost_;
      best_ = labels_;
    }
  }
  return work_;
}

}  // namespace stowage
