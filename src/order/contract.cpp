#include "order/contract.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "order/reach.h"

namespace stowage {
namespace {

using Set = std::set<std::int32_t>;

constexpr std::int32_t kMostForReach = 30'000;

// The problem as sets that can be edited. A merged pair lives on under the id of one of the two; the other is dead.
// Which ops come before which does not change among the others, so one Reach serves throughout.
class Contraction {
 public:
  explicit Contraction(const OrderProblem& p) : p_(p), rise_(p.extra), alive_(p.ops, 1) {
    if (p.ops <= kMostForReach) reach_.emplace(p);
    for (std::int32_t op = 0; op < p.ops; ++op) {
      preds_.push_back(set_of(p.preds[op]));
      succs_.push_back(set_of(p.succs[op]));
      opens_.push_back(set_of(p.opens[op]));
      closes_.push_back(set_of(p.closes[op]));
      group_.push_back({op});
      for (const std::int32_t w : p.opens[op]) rise_[op] += p.weight[w];
    }
    for (std::int32_t op = 0; op < p.ops; ++op) drop_implied_preds(op, p.preds[op]);
    for (std::size_t w = 0; w < p.weight.size(); ++w) closers_.push_back(set_of(p.closers[w]));
    for (std::size_t w = 0; w < p.weight.size(); ++w) drop_early_closers(static_cast<std::int32_t>(w), p.closers[w]);
  }

  Contracted run() {
    for (bool changed = true; changed;) {
      changed = false;
      for (std::int32_t op = 0; op < p_.ops; ++op)
        while (alive_[op] && (wait(op) || follow(op))) changed = true;
    }
    return rebuilt();
  }

 private:
  static Set set_of(std::span<const std::int32_t> row) { return {row.begin(), row.end()}; }

  // Without a Reach only what a direct edge says: fewer merges, none of them wrong.
  [[nodiscard]] bool before(std::int32_t a, std::int32_t b) const {
    return reach_ ? reach_->before(a, b) : preds_[b].contains(a);
  }

  [[nodiscard]] std::int64_t opened(std::int32_t op) const {
    std::int64_t bytes = 0;
    for (const std::int32_t w : opens_[op]) bytes += p_.weight[w];
    return bytes;
  }
  [[nodiscard]] bool closes_for_certain(std::int32_t w) const { return closers_[w].size() == 1 && !p_.open_at_end[w]; }
  [[nodiscard]] std::int64_t closed_for_certain(std::int32_t op) const {
    std::int64_t bytes = 0;
    for (const std::int32_t w : closes_[op])
      if (closes_for_certain(w)) bytes += p_.weight[w];
    return bytes;
  }

  // Merges `v` into its only pred, if nothing is lost.
  bool follow(std::int32_t v) {
    if (preds_[v].size() != 1) return false;
    const std::int32_t u = *preds_[v].begin();
    if (opened(v) > closed_for_certain(v)) return false;
    if (rise_[v] + opened(u) - closed_for_certain(u) > rise_[u]) return false;
    succs_[u].erase(v);
    const Set later = succs_[v];
    for (const std::int32_t t : later) {
      preds_[t].erase(v);
      preds_[t].insert(u);
      succs_[u].insert(t);
    }
    group_[u].insert(group_[u].end(), group_[v].begin(), group_[v].end());
    join_weights(u, v, u);
    bury(v);
    for (const std::int32_t t : later) drop_implied_preds(t, std::span(&u, 1));
    return true;
  }

  // Merges `u` into its only successor, if nothing is lost.
  bool wait(std::int32_t u) {
    if (succs_[u].size() != 1) return false;
    const std::int32_t s = *succs_[u].begin();
    for (const std::int32_t w : closes_[u])
      if (!closes_for_certain(w)) return false;
    const std::int64_t delta = opened(u) - closed_for_certain(u);
    if (delta < 0 || rise_[u] > delta + rise_[s]) return false;
    rise_[s] += delta;
    preds_[s].erase(u);
    const std::vector<std::int32_t> earlier(preds_[u].begin(), preds_[u].end());
    for (const std::int32_t q : earlier) {
      succs_[q].erase(u);
      succs_[q].insert(s);
      preds_[s].insert(q);
    }
    group_[s].insert(group_[s].begin(), group_[u].begin(), group_[u].end());
    join_weights(u, s, s);
    bury(u);
    drop_implied_preds(s, earlier);
    return true;
  }

  // What `first`, then `second` open and close becomes what `into`, one of them, does.
  void join_weights(std::int32_t first, std::int32_t second, std::int32_t into) {
    Set opens = opens_[first], closes = closes_[first];
    opens.insert(opens_[second].begin(), opens_[second].end());
    closes.insert(closes_[second].begin(), closes_[second].end());
    for (const std::int32_t w : closes) {
      closers_[w].erase(first);
      closers_[w].erase(second);
    }
    opens_[into].clear();
    closes_[first].clear();
    closes_[second].clear();
    for (const std::int32_t w : opens)
      // Else it lives within the pair: part of the rise
      if (!closers_[w].empty() || p_.open_at_end[w]) opens_[into].insert(w);
    for (const std::int32_t w : closes)
      if (!opens.contains(w)) {
        closers_[w].insert(into);
        closes_[into].insert(w);
        drop_early_closers(w, std::span(&into, 1));
      }
  }

  void bury(std::int32_t op) {
    alive_[op] = 0;
    preds_[op].clear();
    succs_[op].clear();
    opens_[op].clear();
    group_[op].clear();
  }

  // Those of `all` that come before another of them. Only pairs with a `fresh` one are looked at, the others were
  // before.
  [[nodiscard]] std::vector<std::int32_t> implied(const Set& all, std::span<const std::int32_t> fresh) const {
    const std::vector<std::int32_t> every(all.begin(), all.end());
    std::vector<std::int32_t> found;
    for (const std::int32_t a : every) {
      const auto beside = std::ranges::find(fresh, a) != fresh.end() ? std::span(every) : fresh;
      if (std::ranges::any_of(beside, [&](std::int32_t b) { return before(a, b); })) found.push_back(a);
    }
    return found;
  }

  // Before another pred of `op`, of which `fresh` are new.
  void drop_implied_preds(std::int32_t op, std::span<const std::int32_t> fresh) {
    for (const std::int32_t q : implied(preds_[op], fresh)) {
      preds_[op].erase(q);
      succs_[q].erase(op);
    }
  }

  // A closer before another is not the last one. Nothing closes what is open at the end.
  void drop_early_closers(std::int32_t w, std::span<const std::int32_t> fresh) {
    const Set early = p_.open_at_end[w] ? closers_[w] : set_of(implied(closers_[w], fresh));
    for (const std::int32_t c : early) {
      closers_[w].erase(c);
      closes_[c].erase(w);
    }
  }

  Contracted rebuilt();

  static void append(const Set& row, Csr& to) {
    to.items.insert(to.items.end(), row.begin(), row.end());
    to.close_row();
  }

  const OrderProblem& p_;
  std::optional<Reach> reach_;
  std::vector<std::int64_t> rise_;  // per op: its step above the live bytes before it
  std::vector<char> alive_;
  std::vector<std::vector<std::int32_t>> group_;
  std::vector<Set> preds_, succs_, opens_, closes_, closers_;
};

// Weights with the same opener and the same closers become one on the way.
Contracted Contraction::rebuilt() {
  OrderProblem edited;
  edited.ops = p_.ops;
  edited.base = p_.base;
  std::vector<std::int32_t> members, opener(p_.weight.size(), -1);
  for (std::int32_t op = 0; op < p_.ops; ++op) {
    append(preds_[op], edited.preds);
    append(succs_[op], edited.succs);
    for (const std::int32_t w : opens_[op]) opener[w] = op;
    edited.extra.push_back(rise_[op] - opened(op));
    if (alive_[op]) members.push_back(op);
  }
  std::map<std::tuple<std::int32_t, bool, Set>, std::size_t> known;
  for (std::size_t w = 0; w < p_.weight.size(); ++w) {
    if (opener[w] < 0 && !p_.open_at_start[w]) continue;  // lives within one op
    const auto [it, fresh] = known.try_emplace({opener[w], p_.open_at_end[w] != 0, closers_[w]}, edited.weight.size());
    if (!fresh) {
      edited.weight[it->second] += p_.weight[w];
      continue;
    }
    edited.weight.push_back(p_.weight[w]);
    edited.open_at_start.push_back(p_.open_at_start[w]);
    edited.open_at_end.push_back(p_.open_at_end[w]);
    if (opener[w] >= 0) edited.openers.items.push_back(opener[w]);
    edited.openers.close_row();
    append(closers_[w], edited.closers);
  }
  Contracted result{restricted(edited, members, std::vector<char>(p_.ops, 0)), {}};
  for (const std::int32_t op : members) result.ops.push_back(std::move(group_[op]));
  return result;
}

}  // namespace

Contracted contracted(const OrderProblem& problem) { return Contraction(problem).run(); }

}  // namespace stowage
