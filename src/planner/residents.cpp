#include "planner/residents.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "budget/lanes.h"
#include "planner/away_graph.h"
#include "planner/away_plan.h"
#include "planner/leaving_bounds.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/stopwatch.h"

namespace stowage {
namespace {

constexpr int kPlans = 4;  // besides that of all that may leave

class Leaving {
 public:
  Leaving(const Graph& graph, const PlanOptions& options) : graph_(graph), options_(options), link_{options.link_gbps} {
    options_.budget_bytes.reset();
  }

  PlanResult run(const PlanResult& stay, std::int64_t budget_bytes) {
    const Stopwatch watch;
    PlanResult best = stay;
    const std::vector<BufferId> all = candidates();
    if (all.empty()) return best;
    best.budget_bound_bytes = bound_with_leaving(graph_);
    if (budget_bytes < best.budget_bound_bytes) {  // then only the smallest budget that works is looked for
      PlanResult least = best;
      better(all, best.budget_bound_bytes, least);
      best.smallest_bytes = least.smallest_bytes;
      return best;
    }
    if (!better(all, budget_bytes, best)) return best;
    const std::vector<BufferId> leave_first = by_worth(all, *best.plan);
    std::size_t leave = leave_first.size(), enough = 0;  // so many leave; with so few none was found
    for (int i = 0; i < kPlans && leave - enough > 1; ++i) {
      const std::size_t middle = enough + (leave - enough) / 2;
      std::vector<BufferId> fewer(leave_first.begin(), leave_first.begin() + static_cast<std::ptrdiff_t>(middle));
      std::sort(fewer.begin(), fewer.end());
      (better(fewer, budget_bytes, best) ? leave : enough) = middle;
    }
    best.step_bound_ns = time_bound_with_leaving(graph_, budget_bytes, link_);
    best.seconds.budget += watch.seconds();
    best.seconds.total += watch.seconds();
    return best;
  }

 private:
  [[nodiscard]] std::vector<BufferId> candidates() const {
    std::vector<char> used(graph_.buffers.size(), 0);
    for (const Op& op : graph_.ops)
      for (const auto* list : {&op.reads, &op.writes})
        for (const BufferId b : *list) used[b.index()] = 1;
    std::vector<BufferId> all;
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b)
      if (graph_.buffers[b].leaves && graph_.buffers[b].bytes >= options_.least_leaving_bytes && used[b] != 0)
        all.emplace_back(b);
    return all;
  }

  // Plans with `away`; the plan becomes the best where it fits and is faster. True when it fits.
  bool better(const std::vector<BufferId>& away, std::int64_t budget_bytes, PlanResult& best) {
    const AwayGraph sent = send_away(graph_, away, link_);
    PlanOptions options = options_;
    PlanResult planned = plan(sent.graph, options);
    const std::int64_t stays = resident_bytes(sent.graph);
    bool unlimited = true;
    if (stays + planned.plan->arena_bytes > budget_bytes) {
      unlimited = false;
      options.budget_bytes = budget_bytes;
      const PlanResult tight = plan(sent.graph, options);
      if (!tight.plan) {
        if (!best.plan && tight.smallest_bytes > 0)
          best.smallest_bytes =
              best.smallest_bytes > 0 ? std::min(best.smallest_bytes, tight.smallest_bytes) : tight.smallest_bytes;
        if (!best.plan && tight.outcome == Outcome::kUnknown) best.outcome = Outcome::kUnknown;
        return false;
      }
      planned = tight;
    }
    AwayPlan spread = spread_out(graph_, sent, away, *planned.plan, budget_bytes - stays, link_);
    const CheckReport checked = check(graph_, spread.plan);
    if (!checked.valid) throw Error("the planner made a plan that is not valid: " + checked.message);
    if (best.plan && best.step_ns <= spread.step_ns) return true;
    best.outcome = Outcome::kFeasible;
    best.resident_bytes = stays;
    best.away_bytes = resident_bytes(graph_) - stays;
    best.peak_bytes = checked.peak_bytes;
    best.lower_bound_bytes = planned.lower_bound_bytes;
    best.gap = unlimited ? gap(checked.peak_bytes, planned.lower_bound_bytes) : 0;
    best.smallest_bytes = stays + spread.plan.arena_bytes;
    count_runs(spread.plan, best);
    best.swapped_bytes = spread.swapped_bytes;
    best.fetched_bytes = spread.fetched_bytes;
    best.step_ns = spread.step_ns;
    best.plan = std::move(spread.plan);
    return true;
  }

  void count_runs(const Plan& plan, PlanResult& result) const {
    std::vector<char> ran(graph_.ops.size(), 0);
    result.recomputed_ops = result.recompute_ns = 0;
    for (const Step& step : plan.steps) {
      if (step.kind != Step::Kind::kRun) continue;
      if (ran[step.op.index()] != 0) {
        ++result.recomputed_ops;
        result.recompute_ns += graph_.op(step.op).cost_ns;
      }
      ran[step.op.index()] = 1;
    }
  }

  // Who leaves first: those that are on the device for the least part of the step, and not at its fullest.
  [[nodiscard]] std::vector<BufferId> by_worth(const std::vector<BufferId>& all, const Plan& plan) const {
    std::vector<std::int64_t> change(plan.steps.size() + 1, 0);
    for (const Placement& p : plan.placements) {
      change[static_cast<std::size_t>(p.from)] += graph_.padded(graph_.buffer(p.buffer).bytes);
      change[static_cast<std::size_t>(p.to)] -= graph_.padded(graph_.buffer(p.buffer).bytes);
    }
    std::int64_t now = 0, most = -1;
    std::int32_t fullest = 0;
    for (std::size_t s = 0; s < plan.steps.size(); ++s)
      if ((now += change[s]) > most) most = now, fullest = static_cast<std::int32_t>(s);
    std::vector<std::int64_t> held(graph_.buffers.size(), 0);
    std::vector<char> at_peak(graph_.buffers.size(), 0);
    for (const Placement& p : plan.placements) {
      held[p.buffer.index()] += p.to - p.from;
      if (p.from <= fullest && fullest < p.to) at_peak[p.buffer.index()] = 1;
    }
    std::vector<BufferId> order = all;
    std::stable_sort(order.begin(), order.end(), [&](BufferId a, BufferId b) {
      if (at_peak[a.index()] != at_peak[b.index()]) return at_peak[a.index()] < at_peak[b.index()];
      return held[a.index()] < held[b.index()];
    });
    return order;
  }

  const Graph& graph_;
  PlanOptions options_;
  budget::Link link_;
};

}  // namespace

bool has_leaving(const Graph& graph) {
  return std::any_of(graph.buffers.begin(), graph.buffers.end(), [](const Buffer& b) { return b.leaves; });
}

PlanResult plan_with_leaving(const Graph& graph, const PlanOptions& options, const PlanResult& stay) {
  return Leaving(graph, options).run(stay, *options.budget_bytes);
}

}  // namespace stowage
