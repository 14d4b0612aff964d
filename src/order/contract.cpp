#include "order/contract.h"

#include <algorithm>
#include <set>

namespace stowage {
namespace {

using Set = std::set<std::int32_t>;

// The problem as sets that can be edited. Ids of merged ops are dead.
class Contraction {
 public:
  explicit Contraction(const OrderProblem& p) : p_(p), extra_(p.extra), alive_(p.ops, 1) {
    for (std::int32_t op = 0; op < p.ops; ++op) {
      preds_.push_back(set_of(p.preds[op]));
      succs_.push_back(set_of(p.succs[op]));
      group_.push_back({op});
      own_.push_back(p.extra[op]);
      for (const std::int32_t w : p.opens[op]) own_.back() += p.weight[w];
      opens_.push_back(set_of(p.opens[op]));
      closes_.push_back(set_of(p.closes[op]));
    }
    for (std::size_t w = 0; w < p.weight.size(); ++w) closers_.push_back(set_of(p.closers[w]));
  }

  Contracted run() {
    for (std::int32_t u = 0; u < p_.ops; ++u)  // in order, so that a chain folds into its end
      if (closes_[u].empty())
        if (const std::int32_t s = first_successor(u); s >= 0 && extra_[u] <= own_[s]) merge(u, s);
    return rebuilt();
  }

 private:
  static Set set_of(std::span<const std::int32_t> row) { return {row.begin(), row.end()}; }

  // The successor that directly precedes all others, or -1.
  [[nodiscard]] std::int32_t first_successor(std::int32_t u) const {
    if (succs_[u].empty()) return -1;
    const std::int32_t s = *succs_[u].begin();  // the smallest id: no other can come before it
    for (const std::int32_t other : succs_[u])
      if (other != s && !preds_[other].contains(s)) return -1;
    return s;
  }

  void merge(std::int32_t u, std::int32_t s) {
    for (const std::int32_t w : opens_[u]) {
      if (closers_[w].size() == 1 && *closers_[w].begin() == s && !p_.open_at_end[w]) {
        extra_[s] += p_.weight[w];
        closes_[s].erase(w);
        closers_[w].clear();
      } else {
        opens_[s].insert(w);
        if (closers_[w].erase(s) != 0) closes_[s].erase(w);  // s opens it now; others close it
      }
    }
    for (const std::int32_t q : preds_[u]) {
      succs_[q].erase(u);
      succs_[q].insert(s);
      preds_[s].insert(q);
    }
    for (const std::int32_t t : succs_[u]) {
      preds_[t].erase(u);
      if (t == s) continue;
      preds_[t].insert(s);
      succs_[s].insert(t);
    }
    alive_[u] = 0;
    group_[s].insert(group_[s].end() - 1, group_[u].begin(), group_[u].end());
    opens_[u].clear();
  }

  Contracted rebuilt() {
    OrderProblem edited = p_;
    edited.extra = extra_;
    edited.preds = edited.succs = edited.openers = edited.closers = Csr{};
    Csr opens;
    std::vector<std::int32_t> members;
    for (std::int32_t op = 0; op < p_.ops; ++op) {
      append(preds_[op], edited.preds);
      append(succs_[op], edited.succs);
      append(opens_[op], opens);
      if (alive_[op]) members.push_back(op);
    }
    for (const Set& closers : closers_) append(closers, edited.closers);
    edited.openers = transpose(opens, p_.weight.size());
    Contracted result{restricted(edited, members, std::vector<char>(p_.ops, 0)), {}};
    for (const std::int32_t op : members) result.ops.push_back(std::move(group_[op]));
    return result;
  }

  static void append(const Set& row, Csr& to) {
    to.items.insert(to.items.end(), row.begin(), row.end());
    to.close_row();
  }

  const OrderProblem& p_;
  std::vector<std::int64_t> extra_;
  std::vector<std::int64_t> own_;  // what the op itself takes, without those merged into it
  std::vector<char> alive_;
  std::vector<std::vector<std::int32_t>> group_;
  std::vector<Set> preds_, succs_, opens_, closes_, closers_;
};

}  // namespace

Contracted contracted(const OrderProblem& problem) { return Contraction(problem).run(); }

}  // namespace stowage
