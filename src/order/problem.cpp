#include "order/problem.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace stowage {
namespace {

void index_by_op(OrderProblem& p) {
  p.opens = transpose(p.openers, static_cast<std::size_t>(p.ops));
  p.closes = transpose(p.closers, static_cast<std::size_t>(p.ops));
}

// Rows and items both turned round: row i becomes row rows - 1 - i, id j becomes columns - 1 - j.
Csr mirrored(const Csr& of, std::int32_t columns, bool rows_too) {
  Csr result;
  result.items.reserve(of.items.size());
  for (std::size_t i = 0; i < of.rows(); ++i) {
    const auto row = of[rows_too ? of.rows() - 1 - i : i];
    for (auto it = row.rbegin(); it != row.rend(); ++it) result.items.push_back(columns - 1 - *it);
    result.close_row();
  }
  return result;
}

// What restricted() needs to know of one weight.
struct Inside {
  std::vector<std::int32_t> openers, closers;
  bool open_at_start = false;
  bool open_at_end = false;
};

class Restriction {
 public:
  Restriction(const OrderProblem& whole, std::span<const std::int32_t> members, const std::vector<char>& before)
      : whole_(whole), members_(members), before_(before), local_(static_cast<std::size_t>(whole.ops), -1) {
    for (std::size_t i = 0; i < members.size(); ++i) local_[members[i]] = static_cast<std::int32_t>(i);
  }

  OrderProblem build() {
    part_.ops = static_cast<std::int32_t>(members_.size());
    part_.base = whole_.base;
    for (const std::int32_t op : members_) {
      part_.extra.push_back(whole_.extra[op]);
      append(whole_.preds[op], part_.preds);
      append(whole_.succs[op], part_.succs);
    }
    for (std::size_t w = 0; w < whole_.weight.size(); ++w) add_weight(w);
    index_by_op(part_);
    return std::move(part_);
  }

 private:
  void append(std::span<const std::int32_t> row, Csr& to) const {
    for (const std::int32_t op : row)
      if (local_[op] >= 0) to.items.push_back(local_[op]);
    to.close_row();
  }

  void add_weight(std::size_t w) {
    bool started = whole_.open_at_start[w] != 0, kept = whole_.open_at_end[w] != 0;
    bool opened_here = false, closed_here = false;
    for (const std::int32_t op : whole_.openers[w]) {
      started |= before_[op] != 0;
      opened_here |= local_[op] >= 0;
    }
    for (const std::int32_t op : whole_.closers[w]) {
      kept |= before_[op] == 0 && local_[op] < 0;
      closed_here |= local_[op] >= 0;
    }
    if ((!started && !opened_here) || (!kept && !closed_here)) return;  // not live in this part
    if (started && kept) {
      part_.base += whole_.weight[w];
      return;
    }
    part_.weight.push_back(whole_.weight[w]);
    part_.open_at_start.push_back(started);
    part_.open_at_end.push_back(kept);
    if (started)
      part_.openers.close_row();
    else
      append(whole_.openers[w], part_.openers);
    if (kept)
      part_.closers.close_row();
    else
      append(whole_.closers[w], part_.closers);
  }

  const OrderProblem& whole_;
  std::span<const std::int32_t> members_;
  const std::vector<char>& before_;
  std::vector<std::int32_t> local_;
  OrderProblem part_;
};

void append_row(const Csr& from, std::size_t row, Csr& to, std::span<const Precedence> more, bool preds) {
  to.items.insert(to.items.end(), from[row].begin(), from[row].end());
  for (const Precedence& edge : more)
    if (static_cast<std::size_t>(preds ? edge.to : edge.from) == row) to.items.push_back(preds ? edge.from : edge.to);
  to.close_row();
}

// The smallest topological order, by ids. Shorter than the number of ops when there is a cycle.
std::vector<std::int32_t> topological_order(const OrderProblem& problem) {
  std::vector<std::int32_t> waiting(problem.ops), order;
  std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>> ready;
  for (std::int32_t op = 0; op < problem.ops; ++op) {
    waiting[op] = static_cast<std::int32_t>(problem.preds[op].size());
    if (waiting[op] == 0) ready.push(op);
  }
  while (!ready.empty()) {
    const std::int32_t op = ready.top();
    ready.pop();
    order.push_back(op);
    for (const std::int32_t s : problem.succs[op])
      if (--waiting[s] == 0) ready.push(s);
  }
  return order;
}

}  // namespace

std::optional<Renumbered> with_precedence(const OrderProblem& problem, std::span<const Precedence> more) {
  OrderProblem p = problem;
  p.preds = p.succs = Csr{};
  for (std::int32_t op = 0; op < p.ops; ++op) {
    append_row(problem.preds, op, p.preds, more, true);
    append_row(problem.succs, op, p.succs, more, false);
  }
  std::vector<std::int32_t> order = topological_order(p);
  if (order.size() != static_cast<std::size_t>(p.ops)) return std::nullopt;
  OrderProblem renumbered = restricted(p, order, std::vector<char>(p.ops, 0));
  return Renumbered{std::move(renumbered), std::move(order)};
}

OrderProblem order_problem(const AnalysedGraph& graph) { return order_problem(graph, graph.dependencies); }

OrderProblem order_problem(const AnalysedGraph& graph, const Dependencies& dependencies) {
  OrderProblem p;
  p.ops = static_cast<std::int32_t>(graph.graph.ops.size());
  p.preds = dependencies.preds;
  p.succs = dependencies.succs;
  p.extra = graph.added_bytes.raw();
  for (const BufferId b : graph.bytes.ids()) {
    const Buffer& buffer = graph.graph.buffer(b);
    const auto users = graph.uses.users[b];
    if (buffer.resident || buffer.bytes == 0 || (users.empty() && !buffer.returned)) continue;  // part of extra alone
    p.weight.push_back(graph.bytes[b]);
    p.open_at_start.push_back(0);
    p.open_at_end.push_back(buffer.returned);
    p.openers.items.push_back(graph.uses.creator[b]);
    p.openers.close_row();
    if (!buffer.returned) p.closers.items.insert(p.closers.items.end(), users.begin(), users.end());
    p.closers.close_row();
    p.extra[graph.uses.creator[b]] -= p.weight.back();
  }
  index_by_op(p);
  return p;
}

OrderProblem reversed(const OrderProblem& problem) {
  OrderProblem p;
  p.ops = problem.ops;
  p.preds = mirrored(problem.succs, p.ops, true);
  p.succs = mirrored(problem.preds, p.ops, true);
  p.weight = problem.weight;
  p.openers = mirrored(problem.closers, p.ops, false);
  p.closers = mirrored(problem.openers, p.ops, false);
  p.open_at_start = problem.open_at_end;
  p.open_at_end = problem.open_at_start;
  p.extra.assign(problem.extra.rbegin(), problem.extra.rend());
  p.base = problem.base;
  index_by_op(p);
  return p;
}

OrderProblem restricted(const OrderProblem& problem, std::span<const std::int32_t> members,
                        const std::vector<char>& before) {
  return Restriction(problem, members, before).build();
}

std::vector<std::int64_t> steps(const OrderProblem& problem, std::span<const std::int32_t> order) {
  std::vector<std::int32_t> left(problem.weight.size());
  std::vector<char> open(problem.open_at_start.begin(), problem.open_at_start.end());
  std::int64_t live = problem.base;
  for (std::size_t w = 0; w < left.size(); ++w) {
    left[w] = static_cast<std::int32_t>(problem.closers[w].size()) + problem.open_at_end[w];
    if (open[w]) live += problem.weight[w];
  }
  std::vector<std::int64_t> result;
  result.reserve(order.size());
  for (const std::int32_t op : order) {
    for (const std::int32_t w : problem.opens[op])
      if (!open[w]) {
        open[w] = 1;
        live += problem.weight[w];
      }
    result.push_back(live + problem.extra[op]);
    for (const std::int32_t w : problem.closes[op])
      if (--left[w] == 0) live -= problem.weight[w];
  }
  return result;
}

std::int64_t peak(const OrderProblem& problem, std::span<const std::int32_t> order) {
  std::int64_t most = problem.base;
  for (const std::int64_t step : steps(problem, order)) most = std::max(most, step);
  return most;
}

}  // namespace stowage
