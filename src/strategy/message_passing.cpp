#include "strategy/message_passing.h"

#include <algorithm>

namespace stowage {

MessagePassing::MessagePassing(const ChoiceNetwork& network)
    : network_(network), priced_(network.cost), lower_degree_(static_cast<std::size_t>(network.nodes()), 0) {
  std::size_t a_size = 0, b_size = 0;
  for (const ChoiceNetwork::Edge& edge : network.edges) {
    to_a_.push_back(a_size);
    to_b_.push_back(b_size);
    a_size += static_cast<std::size_t>(network.labels(edge.a));
    b_size += static_cast<std::size_t>(network.labels(edge.b));
    ++lower_degree_[static_cast<std::size_t>(edge.b)];
  }
  message_to_a_.assign(a_size, 0);
  alone_.assign(static_cast<std::size_t>(network.nodes()), 0);
  message_to_b_.assign(b_size, 0);
}

void MessagePassing::set_prices(const std::vector<double>& prices) {
  std::vector<double> before(prices.size() + 1, 0);
  for (std::size_t t = 0; t < prices.size(); ++t) before[t + 1] = before[t] + prices[t];
  for (std::int32_t i = 0; i < network_.nodes(); ++i) {
    const double price =
        before[static_cast<std::size_t>(network_.row_to[i])] - before[static_cast<std::size_t>(network_.row_from[i])];
    for (std::int32_t l = network_.first[i]; l < network_.first[i + 1]; ++l)
      priced_[l] = network_.cost[l] + price * network_.usage[l];
  }
}

void MessagePassing::gather(std::int32_t node) {
  const auto count = static_cast<std::size_t>(network_.labels(node));
  gathered_.assign(priced_.begin() + network_.first[node], priced_.begin() + network_.first[node + 1]);
  for (const std::int32_t e : network_.touching[static_cast<std::size_t>(node)]) {
    const double* message =
        network_.edges[e].a == node ? message_to_a_.data() + to_a_[e] : message_to_b_.data() + to_b_[e];
    for (std::size_t s = 0; s < count; ++s) gathered_[s] += message[s];
  }
}

void MessagePassing::decide(std::int32_t node, Labels& labels) const {
  std::vector<double> total(priced_.begin() + network_.first[node], priced_.begin() + network_.first[node + 1]);
  for (const std::int32_t e : network_.touching[static_cast<std::size_t>(node)]) {
    const ChoiceNetwork::Edge& edge = network_.edges[e];
    const double* matrix = network_.matrix(edge);
    const std::size_t columns = static_cast<std::size_t>(network_.labels(edge.b));
    for (std::size_t s = 0; s < total.size(); ++s) {
      total[s] +=
          edge.a == node ? message_to_a_[to_a_[e] + s] : matrix[static_cast<std::size_t>(labels[edge.a]) * columns + s];
    }
  }
  labels[node] = static_cast<std::int32_t>(std::min_element(total.begin(), total.end()) - total.begin());
}

// Passes the node's share on along the edges that go onwards. Returns what the messages and the node leave in the
// bound.
double MessagePassing::send(std::int32_t node, bool forward) {
  const auto touching = network_.touching[static_cast<std::size_t>(node)];
  const auto before = lower_degree_[node];
  const auto after = static_cast<std::int32_t>(touching.size()) - before;
  const double weight = 1.0 / std::max({1, before, after});
  const std::size_t count = gathered_.size();
  double bound = 0;
  for (const std::int32_t e : touching) {
    const ChoiceNetwork::Edge& edge = network_.edges[e];
    if ((edge.a == node) != forward) continue;
    const double* matrix = network_.matrix(edge);
    const double* in = forward ? message_to_a_.data() + to_a_[e] : message_to_b_.data() + to_b_[e];
    double* out = forward ? message_to_b_.data() + to_b_[e] : message_to_a_.data() + to_a_[e];
    const auto targets = static_cast<std::size_t>(network_.labels(forward ? edge.b : edge.a));
    share_.resize(count);
    for (std::size_t s = 0; s < count; ++s) share_[s] = weight * gathered_[s] - in[s];
    if (forward) {
      std::fill(out, out + targets, 1e300);
      for (std::size_t s = 0; s < count; ++s) {
        const double* row = matrix + s * targets;
        for (std::size_t t = 0; t < targets; ++t) out[t] = std::min(out[t], share_[s] + row[t]);
      }
    } else {
      for (std::size_t s = 0; s < targets; ++s) {
        const double* row = matrix + s * count;
        double least = 1e300;
        for (std::size_t t = 0; t < count; ++t) least = std::min(least, share_[t] + row[t]);
        out[s] = least;
      }
    }
    const double least = *std::min_element(out, out + targets);
    for (std::size_t t = 0; t < targets; ++t) out[t] -= least;
    bound += least;
  }
  const double left = 1 - weight * (forward ? after : before);
  if (left > 1e-12) bound += left * *std::min_element(gathered_.begin(), gathered_.end());
  return bound;
}

double MessagePassing::sweep(Labels& labels) {
  const std::int32_t nodes = network_.nodes();
  labels.assign(static_cast<std::size_t>(nodes), 0);
  for (std::int32_t i = 0; i < nodes; ++i) {
    gather(i);
    decide(i, labels);
    send(i, true);
  }
  double bound = 0;
  for (std::int32_t i = nodes - 1; i >= 0; --i) {
    gather(i);
    alone_[i] = static_cast<std::int32_t>(std::min_element(gathered_.begin(), gathered_.end()) - gathered_.begin());
    bound += send(i, false);
  }
  return bound;
}

}  // namespace stowage
