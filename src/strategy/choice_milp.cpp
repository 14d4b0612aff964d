#include "strategy/choice_milp.h"

#include <algorithm>

#include "solver/milp.h"

namespace stowage {
namespace {

constexpr std::size_t kMostPairs = 300'000;
constexpr std::int64_t kNodeLimit = 2'000;
constexpr std::int64_t kIterationLimit = 400'000;

class ChoiceMilp {
 public:
  explicit ChoiceMilp(const ChoiceNetwork& network) : network_(network) {
    for (const double c : network.cost) problem_.add_binary(c);
    for (std::int32_t i = 0; i < network.nodes(); ++i) {
      std::vector<Term> one;
      for (std::int32_t l = network.first[i]; l < network.first[i + 1]; ++l) one.push_back({l, 1});
      problem_.add_row(1, 1, one);
    }
    for (const ChoiceNetwork::Edge& edge : network.edges) add_pairs(edge);
    add_limits();
  }

  MilpResult run(const Labels& start, const std::function<bool()>& should_stop) {
    MilpOptions options;
    options.node_limit = kNodeLimit;
    options.iteration_limit = kIterationLimit;
    options.absolute_gap = 0.5;  // costs are integers
    options.should_stop = should_stop;
    if (!start.empty()) options.start = columns_of(start);
    return solve(problem_, options);
  }

 private:
  void add_pairs(const ChoiceNetwork::Edge& edge) {
    const std::int32_t rows = network_.labels(edge.a), columns = network_.labels(edge.b);
    std::vector<std::vector<Term>> row_sum(static_cast<std::size_t>(rows)),
        column_sum(static_cast<std::size_t>(columns));
    for (std::int32_t s = 0; s < rows; ++s) {
      for (std::int32_t t = 0; t < columns; ++t) {
        const double c = network_.matrix(edge)[s * columns + t];
        pair_column_.push_back(-1);
        if (c >= network_.penalty) continue;
        const int y = problem_.add_column(c, 0, 1, false);
        pair_column_.back() = y;
        row_sum[static_cast<std::size_t>(s)].push_back({y, 1});
        column_sum[static_cast<std::size_t>(t)].push_back({y, 1});
      }
    }
    for (std::int32_t s = 0; s < rows; ++s) tie(row_sum[static_cast<std::size_t>(s)], network_.first[edge.a] + s);
    for (std::int32_t t = 0; t < columns; ++t) tie(column_sum[static_cast<std::size_t>(t)], network_.first[edge.b] + t);
  }

  void tie(std::vector<Term>& sum, std::int32_t label) {
    sum.push_back({label, -1});
    problem_.add_row(0, 0, sum);
  }

  void add_limits() {
    std::vector<std::vector<Term>> rows(static_cast<std::size_t>(network_.rows));
    for (std::int32_t i = 0; i < network_.nodes(); ++i) {
      for (std::int32_t l = network_.first[i]; l < network_.first[i + 1]; ++l) {
        const double share = network_.usage[l] / std::max(1.0, network_.limit);
        if (share == 0) continue;
        for (std::int32_t t = network_.row_from[i]; t < network_.row_to[i]; ++t)
          rows[static_cast<std::size_t>(t)].push_back({l, share});
      }
    }
    for (const auto& row : rows) problem_.add_row(-kInfinity, network_.limit / std::max(1.0, network_.limit), row);
  }

  std::vector<double> columns_of(const Labels& labels) const {
    std::vector<double> values(static_cast<std::size_t>(problem_.columns()), 0);
    for (std::int32_t i = 0; i < network_.nodes(); ++i)
      values[static_cast<std::size_t>(network_.first[i] + labels[i])] = 1;
    for (const ChoiceNetwork::Edge& edge : network_.edges) {
      const int y =
          pair_column_[edge.at + static_cast<std::size_t>(labels[edge.a] * network_.labels(edge.b) + labels[edge.b])];
      if (y >= 0) values[static_cast<std::size_t>(y)] = 1;
    }
    return values;
  }

  const ChoiceNetwork& network_;
  MilpProblem problem_;
  std::vector<int> pair_column_;  // per entry of pair_cost; -1: forbidden
};

}  // namespace

bool fits_milp(const ChoiceNetwork& network) { return network.pair_cost.size() <= kMostPairs; }

MilpChoice solve_choice(const ChoiceNetwork& network, const Labels& start, const std::function<bool()>& should_stop) {
  MilpChoice choice;
  MilpResult found;
  try {
    found = ChoiceMilp(network).run(start, should_stop);
  } catch (const SolverMissing&) {
    return choice;  // the proof stays open; the choice does not need it
  }
  choice.outcome = found.outcome;
  choice.bound = found.bound;
  if (found.values.empty()) return choice;
  choice.labels.assign(static_cast<std::size_t>(network.nodes()), 0);
  for (std::int32_t i = 0; i < network.nodes(); ++i) {
    for (std::int32_t l = network.first[i]; l < network.first[i + 1]; ++l) {
      if (found.values[static_cast<std::size_t>(l)] > 0.5) choice.labels[i] = l - network.first[i];
    }
  }
  return choice;
}

}  // namespace stowage
