#include "graph/takeover.h"

#include <algorithm>
#include <tuple>

namespace stowage {
namespace {

constexpr std::size_t kMostTried = 8;  // pairs of one op; above, greedy

bool clash(std::span<const Takeover> chosen, const Takeover& pair) {
  return std::any_of(chosen.begin(), chosen.end(),
                     [&](const Takeover& c) { return c.read == pair.read || c.created == pair.created; });
}

// Tries every matching among the pairs.
class Matching {
 public:
  Matching(const Graph& graph, const Op& op, std::span<const Takeover> pairs) : graph_(graph), op_(op), pairs_(pairs) {}

  std::vector<Takeover> best() {
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
    for (const Takeover& pair : chosen_) {
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
  std::span<const Takeover> pairs_;
  std::vector<Takeover> chosen_, best_;
  Rating rating_;
  bool rated_ = false;
};

std::vector<Takeover> largest_first(const Graph& graph, std::span<const Takeover> pairs) {
  std::vector<Takeover> sorted(pairs.begin(), pairs.end()), chosen;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Takeover& a, const Takeover& b) {
    const std::int64_t x = graph.buffer(a.created).bytes, y = graph.buffer(b.created).bytes;
    return x != y ? x > y : graph.buffer(a.read).bytes < graph.buffer(b.read).bytes;
  });
  for (const Takeover& pair : sorted)
    if (!clash(chosen, pair)) chosen.push_back(pair);
  return chosen;
}

}  // namespace

std::vector<Takeover> useful_takeovers(const Graph& graph, const Op& op) {
  std::vector<Takeover> pairs;
  for (const Takeover& pair : op.takeover)
    if (graph.buffer(pair.created).bytes > 0 && !graph.buffer(pair.read).returned) pairs.push_back(pair);
  return pairs;
}

std::vector<Takeover> best_takeovers(const Graph& graph, const Op& op, std::span<const Takeover> pairs) {
  if (pairs.size() > kMostTried) return largest_first(graph, pairs);
  return Matching(graph, op, pairs).best();
}

std::int64_t least_added_bytes(const Graph& graph, const Op& op, std::span<const Takeover> pairs) {
  if (pairs.size() > kMostTried) return added_bytes(graph, op, pairs);
  return added_bytes(graph, op, best_takeovers(graph, op, pairs));
}

std::vector<TakeoverAt> takeovers(const Graph& graph, std::span<const OpId> order) {
  const bool any = std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return !op.takeover.empty(); });
  if (!any) return {};
  const IdVector<BufferId, Lifetime> live = lifetimes(graph, order);
  std::vector<TakeoverAt> used;
  for (std::size_t step = 0; step < order.size(); ++step) {
    const Op& op = graph.op(order[step]);
    if (op.takeover.empty()) continue;
    std::vector<Takeover> pairs = useful_takeovers(graph, op);
    std::erase_if(pairs,
                  [&](const Takeover& pair) { return live[pair.read].to != static_cast<std::int32_t>(step) + 1; });
    for (const Takeover& pair : best_takeovers(graph, op, pairs))
      used.push_back({static_cast<std::int32_t>(step), pair});
  }
  return used;
}

std::vector<std::int64_t> step_bytes(const Graph& graph, std::span<const OpId> order,
                                     std::span<const TakeoverAt> used) {
  const IdVector<BufferId, Lifetime> live = lifetimes(graph, order);
  std::vector<std::int64_t> change(order.size() + 1, 0);  // of the bytes that live on after the step before
  for (const BufferId b : live.ids()) {
    if (live[b].to - live[b].from < 2) continue;  // lives inside one step only
    const std::int64_t bytes = graph.padded(graph.buffer(b).bytes);
    change[live[b].from + 1] += bytes;
    change[live[b].to] -= bytes;
  }
  std::vector<std::int64_t> bytes(order.size());
  std::vector<Takeover> here;
  auto next = used.begin();
  std::int64_t before = 0;
  for (std::size_t step = 0; step < order.size(); ++step) {
    here.clear();
    for (; next != used.end() && next->step == static_cast<std::int32_t>(step); ++next) here.push_back(next->pair);
    before += change[step];
    bytes[step] = before + added_bytes(graph, graph.op(order[step]), here);
  }
  return bytes;
}

std::int64_t peak_bytes(const Graph& graph, std::span<const OpId> order, std::span<const TakeoverAt> used) {
  const std::vector<std::int64_t> bytes = step_bytes(graph, order, used);
  return bytes.empty() ? 0 : std::max<std::int64_t>(0, *std::max_element(bytes.begin(), bytes.end()));
}

}  // namespace stowage
