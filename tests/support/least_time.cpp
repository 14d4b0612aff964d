#include "support/least_time.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <vector>

#include "graph/in_place_reuse.h"

namespace stowage::testing {
namespace {

// Dijkstra over (ops that have run, version of each buffer on the device). Knows the rules of validity, nothing of the
// planner.
class AllStates {
 public:
  AllStates(const Graph& graph, std::int64_t capacity) : graph_(graph), capacity_(capacity) {
    std::vector<int> version(graph.buffers.size(), 0);
    for (const Op& op : graph.ops) {
      seen_.push_back(version);
      for (const auto* list : {&op.writes, &op.creates})
        for (const BufferId b : *list) ++version[b.index()];
    }
    final_ = version;
  }

  std::optional<std::int64_t> least_ns() {
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    std::map<State, std::int64_t> best;
    const auto reach = [&](const State& state, std::int64_t ns) {
      const auto [at, fresh] = best.try_emplace(state, ns);
      if (!fresh && at->second <= ns) return;
      at->second = ns;
      open.push({ns, state});
    };
    reach({0, std::vector<int>(graph_.buffers.size(), 0)}, 0);
    while (!open.empty()) {
      const auto [ns, state] = open.top();
      open.pop();
      if (best[state] < ns) continue;
      if (done(state)) return ns;
      for (std::size_t b = 0; b < graph_.buffers.size(); ++b) {
        if (graph_.buffers[b].resident || state.held[b] == 0) continue;
        State less = state;
        less.held[b] = 0;
        reach(less, ns);
      }
      for (std::size_t k = 0; k < graph_.ops.size(); ++k)
        for (const std::vector<ReusePair>& used : matchings(graph_.ops[k]))
          if (const auto next = run(state, k, used)) reach(*next, ns + graph_.ops[k].cost_ns);
    }
    return std::nullopt;
  }

 private:
  struct State {
    unsigned ran;
    std::vector<int> held;
    auto operator<=>(const State&) const = default;
  };
  using Entry = std::pair<std::int64_t, State>;

  bool done(const State& state) const {
    if (state.ran + 1 != 1U << graph_.ops.size()) return false;
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b)
      if (graph_.buffers[b].returned && state.held[b] != final_[b]) return false;
    return true;
  }

  bool may_run(const State& state, std::size_t k) const {
    const Op& op = graph_.ops[k];
    if ((state.ran >> k & 1) != 0) {
      if (op.effect || op.once) return false;
    } else {
      for (std::size_t j = 0; j < k; ++j) {
        const Op& other = graph_.ops[j];
        const bool first = (op.rng && other.rng) || (op.effect && other.effect) ||
                           std::ranges::find(op.after, OpId(j)) != op.after.end();
        if (first && (state.ran >> j & 1) == 0) return false;
      }
    }
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list)
        if (state.held[b.index()] != seen_[k][b.index()]) return false;
    return true;
  }

  // Every choice of pairs in which no buffer occurs twice.
  static std::vector<std::vector<ReusePair>> matchings(const Op& op) {
    std::vector<std::vector<ReusePair>> result{{}};
    for (const ReusePair& pair : op.takeover)
      for (std::size_t i = 0, there = result.size(); i < there; ++i) {
        if (std::ranges::any_of(result[i],
                                [&](const ReusePair& t) { return t.read == pair.read || t.created == pair.created; }))
          continue;
        result.push_back(result[i]);
        result.back().push_back(pair);
      }
    return result;
  }

  // What is reused in place is gone afterwards.
  std::optional<State> run(const State& state, std::size_t k, const std::vector<ReusePair>& used) const {
    if (!may_run(state, k)) return std::nullopt;
    const Op& op = graph_.ops[k];
    State next = state;
    for (const BufferId b : op.creates) next.held[b.index()] = 0;
    std::int64_t live = added_bytes(graph_, op, used);
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b)
      if (!graph_.buffers[b].resident && next.held[b] != 0) live += graph_.padded(graph_.buffers[b].bytes);
    if (live > capacity_) return std::nullopt;
    next.ran |= 1U << k;
    for (const BufferId b : op.writes) next.held[b.index()] = seen_[k][b.index()] + 1;
    for (const BufferId b : op.creates) next.held[b.index()] = 1;
    for (const ReusePair& pair : used) next.held[pair.read.index()] = 0;
    return next;
  }

  const Graph& graph_;
  std::int64_t capacity_;
  std::vector<std::vector<int>> seen_;  // per op: the version of each buffer that it sees
  std::vector<int> final_;
};

}  // namespace

std::optional<std::int64_t> least_ns(const Graph& graph, std::int64_t capacity) {
  return AllStates(graph, capacity).least_ns();
}

}  // namespace stowage::testing
