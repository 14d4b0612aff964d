#include "graph/in_place_reuse.h"

#include <algorithm>
#include <tuple>

namespace stowage {
namespace {

constexpr std::size_t kMostTried = 8;  // pairs of one op; above, greedy

bool clash(std::span<const ReusePair> chosen, const ReusePair& pair) {
  return std::any_of(chosen.begin(), chosen.end(),
                     [&](const ReusePair& c) { return c.read == pair.read || c.created == pair.created; });
}

// Tries every matching among the pairs.
class Matching {
 public:
  Matching(const Graph& graph, const Op& op, std::span<const ReusePair> pairs)
      : graph_(graph), op_(op), pairs_(pairs) {}

  std::vector<ReusePair> best() {
    rate();
    extend(0);
    return std::move(best_);
  }

 private:
  // Smaller is better.
  using Rating = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  void extend(std::size_t from) {
    for (std::size_t i = from; i < pairs_.size(); ++i) {
      if (clash(chosen_, pairs_[i])) continue;
      chosen_.push_back(pairs_[i]);
      rate();
      extend(i + 1);
      chosen_.pop_back();
    }
  }

  void rate() {
    std::int64_t taken = 0, left = 0;
    for (const ReusePair& pair : chosen_) {
      const std::int64_t bytes = graph_.padded(graph_.buffer(pair.created).bytes);
      taken += bytes;
      left += graph_.padded(graph_.buffer(pair.read).bytes) - bytes;
    }
    const Rating now{added_bytes(graph_, op_, chosen_), -taken, left};
    if (rated_ && now >= rating_) return;
    rated_ = true;
    rating_ = now;
    best_ = chosen_;
  }

  const Graph& graph_;
  const Op& op_;
  std::span<const ReusePair> pairs_;
  std::vector<ReusePair> chosen_, best_;
  Rating rating_;
  bool rated_ = false;
};

std::vector<ReusePair> largest_first(const Graph& graph, std::span<const ReusePair> pairs) {
  std::vector<ReusePair> sorted(pairs.begin(), pairs.end()), chosen;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const ReusePair& a, const ReusePair& b) {
    const std::int64_t x = graph.buffer(a.created).bytes, y = graph.buffer(b.created).bytes;
    return x != y ? x > y : graph.buffer(a.read).bytes < graph.buffer(b.read).bytes;
  });
  for (const ReusePair& pair : sorted)
    if (!clash(chosen, pair)) chosen.push_back(pair);
  return chosen;
}

}  // namespace

std::vector<ReusePair> useful_pairs(const Graph& graph, const Op& op) {
  std::vector<ReusePair> pairs;
  for (const ReusePair& pair : op.takeover)
    if (graph.buffer(pair.created).bytes > 0 && !graph.buffer(pair.read).returned) pairs.push_back(pair);
  return pairs;
}

std::int64_t added_bytes(const Graph& graph, const Op& op, std::span<const ReusePair> used) {
  std::vector<std::pair<std::int32_t, std::int64_t>> changes;  // (tick, bytes)
  const auto reuses = [&](BufferId b) {
    return std::any_of(used.begin(), used.end(), [b](const ReusePair& t) { return t.created == b; });
  };
  for (std::size_t i = 0; i < op.creates.size(); ++i) {
    if (reuses(op.creates[i])) continue;
    changes.emplace_back(born_tick(op, i), graph.padded(graph.buffer(op.creates[i]).bytes));
  }
  for (const Scratch& s : op.scratch) {
    changes.emplace_back(s.from, graph.padded(s.bytes));
    changes.emplace_back(s.to, -graph.padded(s.bytes));
  }
  std::sort(changes.begin(), changes.end());  // at one tick what goes comes first: intervals are half-open
  std::int64_t now = 0, most = 0;
  for (const auto& [tick, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

std::vector<ReusePair> best_pairs(const Graph& graph, const Op& op, std::span<const ReusePair> pairs) {
  if (pairs.size() > kMostTried) return largest_first(graph, pairs);
  return Matching(graph, op, pairs).best();
}

std::int64_t least_added_bytes(const Graph& graph, const Op& op, std::span<const ReusePair> pairs) {
  if (pairs.size() > kMostTried) return added_bytes(graph, op, pairs);
  return added_bytes(graph, op, best_pairs(graph, op, pairs));
}

}  // namespace stowage
