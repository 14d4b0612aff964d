#include "order/reuse_pairs.h"

#include <algorithm>
#include <utility>

#include "graph/in_place_reuse.h"
#include "order/bit_row.h"

namespace stowage {
namespace {

constexpr std::int64_t kSweepWork = 2'000'000'000;  // word operations for exact answers

// For up to kRowColumns ops: who precedes them and who follows them, each op itself included.
class ReachOfColumns {
 public:
  ReachOfColumns(const Dependencies& deps, const std::vector<std::int32_t>& columns)
      : after_(deps.preds.rows()), before_(deps.preds.rows()) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      set(after_[columns[c]], c);
      set(before_[columns[c]], c);
    }
    for (std::size_t v = 0; v < after_.size(); ++v)
      for (const std::int32_t q : deps.preds[v]) join(after_[v], after_[q]);
    for (std::size_t v = before_.size(); v-- > 0;)
      for (const std::int32_t s : deps.succs[v]) join(before_[v], before_[s]);
  }

  // Column c is an ancestor of `op`; `op` is an ancestor of column c.
  [[nodiscard]] bool precedes(std::size_t c, std::int32_t op) const { return is_set(after_[op], c); }
  [[nodiscard]] bool follows(std::size_t c, std::int32_t op) const { return is_set(before_[op], c); }
  // Some column lies between u and v, ends included.
  [[nodiscard]] bool between(std::int32_t u, std::int32_t v) const {
    for (std::int32_t k = 0; k < kRowWords; ++k)
      if ((before_[u][k] & after_[v][k]) != 0) return true;
    return false;
  }

 private:
  std::vector<BitRow> after_, before_;  // the columns that an op comes after, before
};

// What the users of r other than k are to k, as far as it is known.
template <class Precedes>
Death death_of(std::span<const std::int32_t> users, std::int32_t k, Precedes precedes) {
  bool all_before = true;
  for (const std::int32_t u : users) {
    if (u == k) continue;
    if (u > k ? precedes(k, u) : false) return Death::kNever;
    all_before &= u < k && precedes(u, k);
  }
  return all_before ? Death::kSure : Death::kOpen;
}

class DeathFinder {
 public:
  explicit DeathFinder(const AnalysedGraph& graph) : graph_(graph), deps_(graph.dependencies), uses_(graph.uses) {}

  std::vector<CandidatePair> run() {
    for (const OpId op : graph_.reuse.ids())
      for (const ReusePair& pair : graph_.reuse[op]) pairs_.push_back({op.value, pair, Death::kOpen});
    settle([this](std::int32_t u, std::int32_t v) { return std::ranges::binary_search(deps_.succs[u], v); });
    if (any_open()) by_landmarks();
    if (any_open()) exactly();
    std::erase_if(pairs_, [](const CandidatePair& p) { return p.death == Death::kNever; });
    return std::move(pairs_);
  }

 private:
  [[nodiscard]] bool any_open() const {
    return std::ranges::any_of(pairs_, [](const CandidatePair& p) { return p.death == Death::kOpen; });
  }

  template <class Precedes>
  void settle(Precedes precedes) {
    for (CandidatePair& p : pairs_)
      if (p.death == Death::kOpen) p.death = death_of(uses_.users[p.pair.read], p.op, precedes);
  }

  void by_landmarks() {
    const auto ops = static_cast<std::int64_t>(graph_.reuse.size());
    std::vector<std::int32_t> columns;
    for (std::int64_t c = 0; c < std::min<std::int64_t>(kRowColumns, ops); ++c)
      columns.push_back(static_cast<std::int32_t>(c * ops / std::min<std::int64_t>(kRowColumns, ops)));
    const ReachOfColumns reach(deps_, columns);
    settle([&](std::int32_t u, std::int32_t v) { return reach.between(u, v); });
  }

  void exactly() {
    const std::int64_t sweep =
        2 * kRowWords * static_cast<std::int64_t>(deps_.preds.items.size() + graph_.reuse.size());
    std::int64_t work = kSweepWork;
    for (std::size_t p = 0; p < pairs_.size() && work > 0;) {
      std::vector<std::int32_t> columns;
      std::vector<std::pair<std::size_t, std::size_t>> asked;  // pair, column of its op
      for (; p < pairs_.size(); ++p) {
        if (pairs_[p].death != Death::kOpen) continue;
        if (columns.empty() || columns.back() != pairs_[p].op) {
          if (columns.size() == kRowColumns) break;
          columns.push_back(pairs_[p].op);
        }
        asked.emplace_back(p, columns.size() - 1);
      }
      if (asked.empty()) break;
      const ReachOfColumns reach(deps_, columns);
      work -= sweep;
      for (const auto& [pair, column] : asked)
        pairs_[pair].death = death_of(uses_.users[pairs_[pair].pair.read], pairs_[pair].op,
                                      [&, c = column, k = pairs_[pair].op](std::int32_t u, std::int32_t v) {
                                        return u == k ? reach.precedes(c, v) : reach.follows(c, u);
                                      });
    }
  }

  const AnalysedGraph& graph_;
  const Dependencies& deps_;
  const Uses& uses_;
  std::vector<CandidatePair> pairs_;
};

using PairIterator = std::vector<CandidatePair>::const_iterator;

std::vector<ReusePair> pairs_of(PairIterator from, PairIterator to, Death least) {
  std::vector<ReusePair> result;
  for (; from != to; ++from)
    if (from->death >= least) result.push_back(from->pair);
  return result;
}

// extra() of each op with pairs in place of what `added` says that its creations and scratch add.
template <class Added>
OrderProblem lowered(const AnalysedGraph& graph, const OrderProblem& plain, const std::vector<CandidatePair>& pairs,
                     Added added) {
  OrderProblem p = plain;
  for (auto from = pairs.begin(); from != pairs.end();) {
    const auto to = std::find_if(from, pairs.end(), [&](const CandidatePair& q) { return q.op != from->op; });
    const OpId op(from->op);
    p.extra[from->op] += added(graph.graph.op(op), from, to) - graph.added_bytes[op];
    from = to;
  }
  return p;
}

}  // namespace

std::vector<CandidatePair> candidate_pairs(const AnalysedGraph& graph) { return DeathFinder(graph).run(); }

OrderProblem certain_problem(const AnalysedGraph& graph, const OrderProblem& plain,
                             const std::vector<CandidatePair>& pairs) {
  return lowered(graph, plain, pairs, [&](const Op& op, PairIterator from, PairIterator to) {
    return added_bytes(graph.graph, op, best_pairs(graph.graph, op, pairs_of(from, to, Death::kSure)));
  });
}

OrderProblem relaxed_problem(const AnalysedGraph& graph, const OrderProblem& plain,
                             const std::vector<CandidatePair>& pairs) {
  return lowered(graph, plain, pairs, [&](const Op& op, PairIterator from, PairIterator to) {
    return least_added_bytes(graph.graph, op, pairs_of(from, to, Death::kOpen));
  });
}

}  // namespace stowage
