#include "report/decisions.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "budget/range_max.h"
#include "graph/in_place_reuse.h"
#include "graph/ordered_graph.h"
#include "report/moves.h"

namespace stowage::report {
namespace {

constexpr std::int64_t kGone = std::int64_t{1} << 58;  // what a step that is undone is lowered by: above all bytes

// Calls visit(buffer) for each planned buffer that the op reads, writes or creates.
template <class Visit>
void for_each_touched(const Graph& graph, const Op& op, Visit visit) {
  for (const auto* list : {&op.reads, &op.writes, &op.creates})
    for (const BufferId b : *list)
      if (!graph.buffer(b).resident) visit(b);
}

class Account {
 public:
  Account(const Graph& graph, const Plan& plan, const Pieces& pieces, const Curve& curve, const budget::Timing& timing)
      : graph_(graph),
        plan_(plan),
        pieces_(pieces),
        curve_(curve),
        timing_(timing),
        live_(curve.live_bytes),
        waits_(plan.steps.size()),
        out_(graph.buffers.size(), -1) {
    for (const auto* time : times()) {
      if (time->waits_for >= 0) waits_[static_cast<std::size_t>(time->waits_for)] += time->wait_ns;
    }
    list_uses();
  }

  Decisions run() {
    chains();
    swaps();
    in_place_reuse();
    order();
    const auto worth = [](const Decision& d) { return std::tuple(d.saved_bytes.value_or(-1), d.bytes); };
    std::ranges::stable_sort(result_.list, std::greater(), worth);
    return std::move(result_);
  }

 private:
  std::vector<const budget::StepTime*> times() const {
    std::vector<const budget::StepTime*> all;
    for (const budget::StepTime& time : timing_.steps) all.push_back(&time);
    all.push_back(&timing_.end);
    return all;
  }

  const Op& op_at(std::int32_t step) const { return graph_.op(plan_.steps[static_cast<std::size_t>(step)].op); }
  std::int64_t bytes(BufferId b) const { return graph_.padded(graph_.buffer(b).bytes); }
  const Placement& piece(BufferId b, std::size_t rank) const {
    return plan_.placements[static_cast<std::size_t>(pieces_.of(b)[rank])];
  }
  std::int32_t steps() const { return static_cast<std::int32_t>(plan_.steps.size()); }

  // Per buffer: the steps that need it on the device, in order: ops that touch it, and copies out from beginning to
  // end.
  void list_uses() {
    std::vector<std::vector<BufferId>> copied(plan_.steps.size() + 1);
    Csr touched;
    for (std::int32_t s = 0; s < steps(); ++s) {
      const Step& step = plan_.steps[static_cast<std::size_t>(s)];
      if (step.kind == Step::Kind::kRun)
        for_each_touched(graph_, op_at(s), [&](BufferId b) { touched.items.push_back(b.value); });
      if (step.kind == Step::Kind::kSwapOut) {
        touched.items.push_back(step.buffer.value);
        copied[static_cast<std::size_t>(step.until) - 1].push_back(step.buffer);
      }
      for (const BufferId b : copied[static_cast<std::size_t>(s)]) touched.items.push_back(b.value);
      touched.close_row();
    }
    uses_ = transpose(touched, graph_.buffers.size());
  }

  // ---- What is run again

  std::int32_t root(std::int32_t step) {
    while (chain_[static_cast<std::size_t>(step)] != step)
      step = chain_[static_cast<std::size_t>(step)] =
          chain_[static_cast<std::size_t>(chain_[static_cast<std::size_t>(step)])];
    return step;
  }

  void chains() {
    chain_.resize(plan_.steps.size());
    std::iota(chain_.begin(), chain_.end(), 0);
    std::map<std::int32_t, std::vector<std::int32_t>> found;
    for (std::int32_t s = 0; s < steps(); ++s) {
      if (!pieces_.again(s)) continue;
      for_each_touched(graph_, op_at(s), [&](BufferId b) {
        const std::int32_t rank = pieces_.covering(b, s);
        if (rank < 0) return;
        const std::int32_t from = piece(b, static_cast<std::size_t>(rank)).from;
        if (from != s && pieces_.again(from)) chain_[static_cast<std::size_t>(root(s))] = root(from);
      });
    }
    for (std::int32_t s = 0; s < steps(); ++s)
      if (pieces_.again(s)) found[root(s)].push_back(s);
    for (const auto& [first, chain] : found) undo_chain(chain);
  }

  struct Change {
    std::int32_t from, to;
    std::int64_t bytes;
  };

  void undo_chain(const std::vector<std::int32_t>& chain) {
    Decision decision;
    decision.steps = chain;
    decision.from = chain.back();
    decision.to = chain.back() + 1;
    std::vector<Change> changes;
    std::vector<BufferId> touched;
    for (const std::int32_t s : chain) {
      decision.ops.push_back(plan_.steps[static_cast<std::size_t>(s)].op);
      decision.cost_ns += op_at(s).cost_ns;
      changes.push_back({s, s + 1, -kGone});
      for_each_touched(graph_, op_at(s), [&](BufferId b) { touched.push_back(b); });
    }
    std::ranges::sort(touched);
    touched.erase(std::ranges::unique(touched).begin(), touched.end());
    for (const BufferId b : touched) undo_in(b, chain, decision, changes);
    decision.saved_bytes = peak_with(changes) - curve_.peak_bytes;
    result_.list.push_back(std::move(decision));
  }

  // What becomes of one buffer when the steps of a chain go: pieces that they begin join the one before, or go when
  // nothing else uses them; pieces that end with them end earlier.
  void undo_in(BufferId b, const std::vector<std::int32_t>& chain, Decision& decision, std::vector<Change>& changes) {
    const auto in_chain = [&](std::int32_t s) { return std::ranges::binary_search(chain, s); };
    std::int32_t end = -1;  // of what is there without the chain
    for (std::size_t rank = 0; rank < pieces_.of(b).size(); ++rank) {
      const Placement& p = piece(b, rank);
      const bool begun = in_chain(p.from);
      if (rank == 0 || !begun) end = p.from;
      const std::int32_t last = last_use(b, p, in_chain);
      const bool held = graph_.buffer(b).returned && p.to == steps();
      const std::int32_t until = held ? p.to : last < 0 ? (begun ? end : p.from + 1) : last + 1;
      if (begun && until > p.from) {  // needed there: it would have been kept
        decision.buffers.push_back(b);
        decision.bytes += bytes(b);
        decision.from = std::min(decision.from, end);
        changes.push_back({end, p.from, bytes(b)});
      }
      if (until < p.to) changes.push_back({std::max(until, p.from), p.to, -bytes(b)});
      end = std::max(end, until);
    }
  }

  // The last step in the placement that uses the buffer and is not left out; -1: none.
  template <class Leave>
  std::int32_t last_use(BufferId b, const Placement& p, Leave leave_out) const {
    const std::span<const std::int32_t> all = uses_[b];
    for (auto use = std::ranges::lower_bound(all, p.to); use != all.begin() && *(use - 1) >= p.from; --use)
      if (!leave_out(*(use - 1))) return *(use - 1);
    return -1;
  }

  std::int64_t peak_with(const std::vector<Change>& changes) {
    for (const Change& c : changes) live_.add(c.from, c.to, c.bytes);
    const std::int64_t peak = steps() == 0 ? 0 : live_.max(0, steps());
    for (const Change& c : changes) live_.add(c.from, c.to, -c.bytes);
    return peak;
  }

  // ---- What is swapped

  void swaps() {
    for (std::int32_t s = 0; s < steps(); ++s) {
      const Step& step = plan_.steps[static_cast<std::size_t>(s)];
      if (step.kind == Step::Kind::kSwapOut) out_[step.buffer] = s;
      if (step.kind != Step::Kind::kSwapIn) continue;
      const auto rank = pieces_.covering(step.buffer, s);
      if (rank <= 0) continue;
      Decision decision;
      decision.kind = Decision::Kind::kSwap;
      decision.from = piece(step.buffer, static_cast<std::size_t>(rank) - 1).to;
      decision.to = s;
      decision.steps = {s};
      decision.bytes = bytes(step.buffer);
      decision.buffers.push_back(step.buffer);
      decision.cost_ns = waits_[static_cast<std::size_t>(s)];
      std::int32_t& out = out_[step.buffer];
      if (out >= 0) decision.cost_ns += waits_[static_cast<std::size_t>(out)];
      out = -1;  // it is paid once
      gaps_.push_back({decision.from, decision.to, decision.bytes});
      decision.saved_bytes = peak_with({gaps_.back()}) - curve_.peak_bytes;
      result_.list.push_back(std::move(decision));
    }
  }

  // ---- What lies over another

  void in_place_reuse() {
    std::vector<ReusePair> all;
    std::vector<std::int64_t> more(plan_.steps.size());
    for (std::int32_t s = 0; s < steps(); ++s) {
      if (plan_.steps[static_cast<std::size_t>(s)].kind != Step::Kind::kRun) continue;
      all.clear();
      for (const BufferId c : op_at(s).creates) {
        const std::int32_t rank = pieces_.covering(c, s);
        const BufferId read = rank < 0 ? BufferId() : pieces_.reused_input(piece(c, static_cast<std::size_t>(rank)));
        if (read.valid()) all.push_back({read, c});
      }
      if (all.empty()) continue;
      const std::int64_t with = added_bytes(graph_, op_at(s), all);
      more[static_cast<std::size_t>(s)] = added_bytes(graph_, op_at(s)) - with;
      for (const ReusePair& pair : all) undo_reuse(s, pair, all, with);
    }
    stages(more);
  }

  void undo_reuse(std::int32_t s, const ReusePair& pair, std::vector<ReusePair> all, std::int64_t with) {
    std::erase_if(all, [&](const ReusePair& t) { return t.created == pair.created; });
    Decision decision;
    decision.kind = Decision::Kind::kInPlaceReuse;
    decision.from = s;
    decision.to = s + 1;
    decision.bytes = bytes(pair.created);
    decision.buffers = {pair.created, pair.read};
    decision.ops = {plan_.steps[static_cast<std::size_t>(s)].op};
    decision.saved_bytes = peak_with({{s, s + 1, added_bytes(graph_, op_at(s), all) - with}}) - curve_.peak_bytes;
    result_.list.push_back(std::move(decision));
  }

  // ---- The order, and the whole

  void stages(const std::vector<std::int64_t>& without_reuse) {
    Stages& stages = result_.stages;
    stages.in_place_reuse = curve_.peak_bytes;
    std::vector<Change> changes;
    for (std::int32_t s = 0; s < steps(); ++s)
      if (without_reuse[static_cast<std::size_t>(s)] > 0)
        changes.push_back({s, s + 1, without_reuse[static_cast<std::size_t>(s)]});
    stages.swap = peak_with(changes);
    changes.insert(changes.end(), gaps_.begin(), gaps_.end());
    stages.recompute = peak_with(changes);
  }

  void order() {
    std::vector<OpId> order;
    std::vector<std::int32_t> at;
    for (std::int32_t s = 0; s < steps(); ++s) {
      const Step& step = plan_.steps[static_cast<std::size_t>(s)];
      if (step.kind != Step::Kind::kRun || pieces_.again(s)) continue;
      order.push_back(step.op);
      at.push_back(s);
    }
    result_.stages.program = peak_bytes(graph_, program_order(graph_));
    result_.stages.order = peak_bytes(graph_, order);
    for (Decision& move : moves(graph_, order, at, result_.stages.order)) result_.list.push_back(std::move(move));
  }

  const Graph& graph_;
  const Plan& plan_;
  const Pieces& pieces_;
  const Curve& curve_;
  const budget::Timing& timing_;
  budget::RangeMax live_;
  std::vector<std::int64_t> waits_;       // per step: what is waited for its copy
  IdVector<BufferId, std::int32_t> out_;  // per buffer: the latest copy out that no decision has paid for
  std::vector<std::int32_t> chain_;       // per step: union-find
  std::vector<Change> gaps_;              // of swapped buffers
  Csr uses_;
  Decisions result_;
};

}  // namespace

Decisions decisions(const Graph& graph, const Plan& plan, const Pieces& pieces, const Curve& curve,
                    const budget::Timing& timing) {
  return Account(graph, plan, pieces, curve, timing).run();
}

}  // namespace stowage::report
