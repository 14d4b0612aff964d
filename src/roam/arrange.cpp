#include "roam/arrange.h"

#include <algorithm>
#include <numeric>

#include "roam/segments.h"
#include "stowage/error.h"

namespace stowage::roam {
namespace {

constexpr std::int32_t kLongestLoose = 8;  // ops of a chain that is loose

class Arranger {
 public:
  Arranger(const AnalysedGraph& graph, const OrderProblem& plain, const RoamOptions& options)
      : graph_(graph.graph), options_(options), deps_(graph.dependencies), problem_(plain) {
    if (options.updates) {
      plan_ = schedule_updates(graph, options);
    } else {
      plan_.base.resize(graph_.ops.size());
      std::iota(plan_.base.begin(), plan_.base.end(), 0);
    }
    position_.assign(graph_.ops.size(), -1);
    for (std::size_t p = 0; p < plan_.base.size(); ++p) position_[plan_.base[p]] = static_cast<std::int32_t>(p);
  }

  Arranged run() {
    find_loose();
    if (options_.segments) find_keys();
    emit_all();
    Arranged result;
    result.problem = in_order(with_edges(), order_);
    result.loss = loss_step();
    result.ops = std::move(order_);
    result.update_branches = std::ssize(plan_.branches);
    for (const UpdateBranch& b : plan_.branches) result.delayed_branches += b.at != b.ready;
    return result;
  }

 private:
  [[nodiscard]] bool in_base(std::int32_t op) const { return position_[op] >= 0; }

  // floating_: all that comes before it floats too, and is little. dangling_: the same of what comes after.
  void find_loose() {
    const std::size_t n = graph_.ops.size();
    floating_.assign(n, 0);
    dangling_.assign(n, 0);
    std::vector<std::int32_t> size(n, 1);
    for (const std::int32_t op : plan_.base) {
      bool loose = false;  // floats only to serve the base
      for (const std::int32_t s : deps_.succs[op]) loose |= in_base(s);
      for (const std::int32_t s : deps_.succs[op]) loose &= in_base(s);
      for (const std::int32_t p : deps_.preds[op]) {
        loose &= floating_[p] != 0;
        size[op] += size[p];
      }
      size[op] = std::min(size[op], kLongestLoose + 1);
      floating_[op] = loose && size[op] <= kLongestLoose;
    }
    std::fill(size.begin(), size.end(), 1);
    for (std::size_t i = plan_.base.size(); i-- > 0;) {
      const std::int32_t op = plan_.base[i];
      bool loose = !floating_[op];
      for (const std::int32_t s : deps_.succs[op]) {
        if (!in_base(s)) continue;
        loose &= dangling_[s] != 0;
        size[op] += size[s];
      }
      size[op] = std::min(size[op], kLongestLoose + 1);
      dangling_[op] = loose && size[op] <= kLongestLoose;
    }
  }

  void find_keys() {
    Csr preds;
    std::vector<char> ignored;
    for (const std::int32_t op : plan_.base) {
      for (const std::int32_t p : deps_.preds[op]) preds.items.push_back(position_[p]);
      preds.close_row();
      ignored.push_back(floating_[op] || dangling_[op]);
    }
    keys_ = insensitive(preds, ignored);
  }

  // Between which keys things are emitted now: the last at or before `position`, and the next.
  void tie(std::int32_t op, std::int32_t position) {
    const auto next = std::upper_bound(keys_.begin(), keys_.end(), position);
    if (next != keys_.begin()) add_edge(plan_.base[*std::prev(next)], op);
    if (next != keys_.end()) add_edge(op, plan_.base[*next]);
  }

  void add_edge(std::int32_t from, std::int32_t to) {
    if (from != to) edges_.push_back({from, to});
  }

  void emit_all() {
    emitted_.assign(graph_.ops.size(), 0);
    std::vector<std::vector<std::int32_t>> after(plan_.base.size());
    for (std::size_t b = 0; b < plan_.branches.size(); ++b)
      after[plan_.branches[b].at].push_back(static_cast<std::int32_t>(b));
    for (std::size_t p = 0; p < plan_.base.size(); ++p) {
      const auto position = static_cast<std::int32_t>(p);
      const std::int32_t op = plan_.base[p];
      if (floating_[op]) continue;
      emit_floating_before(op, position - 1);
      emit(op);
      if (dangling_[op]) tie(op, position);
      for (const std::int32_t b : after[p])
        for (const std::int32_t update : plan_.branches[b].ops) emit_update(update, position);
    }
    for (const std::int32_t op : plan_.constants)
      if (!emitted_[op]) emit_update(op, static_cast<std::int32_t>(plan_.base.size()) - 1);
  }

  void emit(std::int32_t op) {
    emitted_[op] = 1;
    order_.push_back(op);
  }

  // What floats runs before its first user, after the key before that. In depth at most kLongestLoose.
  void emit_floating_before(std::int32_t user, std::int32_t position) {
    for (const std::int32_t p : deps_.preds[user]) {
      if (emitted_[p]) continue;
      emit_floating_before(p, position);
      emit(p);
      if (position >= 0) tie(p, position);
    }
  }

  void emit_update(std::int32_t op, std::int32_t position) {
    for (const std::int32_t p : deps_.preds[op])
      if (!emitted_[p]) emit_update(p, position);
    if (emitted_[op]) return;
    emit(op);
    tie(op, position);
  }

  [[nodiscard]] OrderProblem with_edges() const {
    OrderProblem p = problem_;
    std::vector<std::vector<std::int32_t>> preds(p.ops);
    for (std::int32_t op = 0; op < p.ops; ++op) preds[op].assign(problem_.preds[op].begin(), problem_.preds[op].end());
    for (const Precedence& edge : edges_) preds[edge.to].push_back(edge.from);
    p.preds = Csr{};
    for (auto& row : preds) {
      std::sort(row.begin(), row.end());
      row.erase(std::unique(row.begin(), row.end()), row.end());
      p.preds.items.insert(p.preds.items.end(), row.begin(), row.end());
      p.preds.close_row();
    }
    p.succs = transpose(p.preds, static_cast<std::size_t>(p.ops));
    return p;
  }

  // The forward pass ends with the last op that creates a returned buffer before any gradient of a parameter is made;
  // without such, where the most bytes are live.
  [[nodiscard]] std::int32_t loss_step() const {
    std::int32_t loss = -1;
    for (std::size_t step = 0; step < order_.size(); ++step) {
      const Op& op = graph_.ops[order_[step]];
      const auto makes = [&](auto rule) {
        return std::ranges::any_of(op.creates, [&](BufferId b) { return rule(graph_.buffer(b)); });
      };
      if (makes([](const Buffer& b) { return b.kind == BufferKind::kGradient; })) break;
      if (makes([](const Buffer& b) { return b.returned; })) loss = static_cast<std::int32_t>(step);
    }
    return loss >= 0 ? loss : fullest_step();
  }

  [[nodiscard]] std::int32_t fullest_step() const {
    std::vector<OpId> order;
    for (const std::int32_t op : order_) order.emplace_back(op);
    std::vector<std::int64_t> change(order.size() + 1, 0);
    const IdVector<BufferId, Lifetime> live = lifetimes(graph_, order);
    for (const BufferId b : live.ids()) {
      change[live[b].from] += graph_.padded(graph_.buffer(b).bytes);
      change[live[b].to] -= graph_.padded(graph_.buffer(b).bytes);
    }
    std::partial_sum(change.begin(), change.end(), change.begin());
    return static_cast<std::int32_t>(std::max_element(change.begin(), change.end()) - change.begin());
  }

  const Graph& graph_;
  const RoamOptions& options_;
  const Dependencies& deps_;
  const OrderProblem& problem_;
  UpdatePlan plan_;
  std::vector<std::int32_t> position_;               // per op: in the base, or -1
  std::vector<char> floating_, dangling_, emitted_;  // per op
  std::vector<std::int32_t> keys_;                   // base positions
  std::vector<Precedence> edges_;
  std::vector<std::int32_t> order_;
};

}  // namespace

Arranged arrange(const AnalysedGraph& graph, const OrderProblem& plain, const RoamOptions& options) {
  return Arranger(graph, plain, options).run();
}

OrderProblem in_order(const OrderProblem& problem, const std::vector<std::int32_t>& order) {
  std::vector<std::int32_t> step(problem.ops, -1);
  for (std::size_t s = 0; s < order.size(); ++s) step[order[s]] = static_cast<std::int32_t>(s);
  for (std::int32_t op = 0; op < problem.ops; ++op)
    for (const std::int32_t p : problem.preds[op])
      if (step[op] < 0 || step[p] >= step[op]) throw Error("roam: an order breaks a dependency");
  return restricted(problem, order, std::vector<char>(problem.ops, 0));
}

}  // namespace stowage::roam
