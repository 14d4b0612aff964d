#include "stowage/planner.h"

#include <algorithm>
#include <limits>

#include "budget/ladder.h"
#include "graph/liveness.h"
#include "graph/takeover.h"
#include "order/greedy.h"
#include "order/problem.h"
#include "order/search.h"
#include "planner/assemble.h"
#include "planner/roam_method.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/stopwatch.h"

namespace stowage {
namespace {

// One laid-out order.
struct Candidate {
  std::vector<OpId> order;
  std::vector<TakeoverAt> used;
  Timeline times;
  LayoutResult addresses;
  std::string meta = {};  // of the plan; raw JSON object, or empty
};

// Large graphs need more to be searched as well, and their steps take longer: in proportion from 10,000 ops to 40,000.
std::int64_t scaled(const Graph& graph, std::int64_t budget) {
  constexpr std::size_t kSmall = 10'000, kMost = 4;
  return budget * static_cast<std::int64_t>(std::clamp(graph.ops.size(), kSmall, kSmall * kMost)) /
         static_cast<std::int64_t>(kSmall);
}

std::int64_t order_work(const Graph& graph, const PlanOptions& options) {
  return scaled(graph, options.order_node_budget) * 500;
}

std::function<bool()> stop_after(const Stopwatch& watch, double seconds) {
  if (seconds <= 0) return {};
  return [&watch, seconds] { return watch.seconds() > seconds; };
}

OrderResult choose_orders(const Graph& graph, const PlanOptions& options, const std::function<bool()>& should_stop) {
  if (!options.keep_order) return find_order(graph, {order_work(graph, options), should_stop, options.takeover});
  const std::vector<OpId> order = program_order(graph);
  const std::vector<TakeoverAt> used = options.takeover ? takeovers(graph, order) : std::vector<TakeoverAt>{};
  return {{order}, peak_bytes(graph, order, used), 0, root_bound(graph, order_work(graph, options))};
}

// Which takeovers to use, several ways, the one to try first in front: all of them, then only those without which a
// step would exceed `peak`, then none. A buffer that takes over a larger one is laid out as if it were as large, so
// such a pair is used only where it is needed.
std::vector<std::vector<TakeoverAt>> takeover_choices(const Graph& graph, const std::vector<OpId>& order,
                                                      std::int64_t peak) {
  const std::vector<TakeoverAt> possible = takeovers(graph, order);
  if (possible.empty()) return {possible};
  const std::vector<std::int64_t> plain = step_bytes(graph, order, {});
  std::vector<TakeoverAt> easy, needed;
  for (const TakeoverAt& t : possible) {
    const bool must = plain[t.step] > peak;
    const bool fits = graph.padded(graph.buffer(t.pair.read).bytes) == graph.padded(graph.buffer(t.pair.created).bytes);
    if (must) needed.push_back(t);
    if (must || fits) easy.push_back(t);
  }
  std::vector<std::vector<TakeoverAt>> choices{std::move(easy)};
  if (needed.size() < choices[0].size()) choices.push_back(needed);
  if (!needed.empty()) choices.emplace_back();
  return choices;
}

Candidate lay_out_one(const Graph& graph, const std::vector<OpId>& order, const std::vector<TakeoverAt>& used,
                      const LayoutOptions& options) {
  Timeline times = timeline(graph, order, used);
  LayoutResult addresses = layout(times.items, options);
  return {order, used, std::move(times), std::move(addresses), {}};
}

// Lays out the orders, all of one peak, until one fits without a hole: first all of them quickly, then the most
// promising with the whole effort. Gives the smallest arena.
Candidate lay_out(const Graph& graph, const OrderResult& found, const PlanOptions& options,
                  const std::function<bool()>& should_stop, std::int64_t& work) {
  constexpr std::size_t kWithEffort = 2;
  const std::int64_t budget = scaled(graph, options.layout_node_budget);
  std::int64_t quick_work = budget * 1600;  // of all quick layouts
  static const std::vector<std::vector<TakeoverAt>> kNoTakeovers(1);
  LayoutOptions layout_options;
  layout_options.align = graph.align;
  layout_options.seed = options.seed;
  layout_options.should_stop = should_stop;
  layout_options.node_budget = 0;
  std::vector<Candidate> tried;
  for (const std::vector<OpId>& order : found.orders) {
    for (const auto& used : options.takeover ? takeover_choices(graph, order, found.peak_bytes) : kNoTakeovers) {
      layout_options.family_work = std::min(quick_work, budget * 800);
      tried.push_back(lay_out_one(graph, order, used, layout_options));
      quick_work -= tried.back().addresses.work;
      work += tried.back().addresses.work;
      if (tried.back().addresses.height_bytes <= found.peak_bytes) return std::move(tried.back());
    }
    if (quick_work <= 0 || (should_stop && should_stop())) break;
  }
  const auto smaller = [](const Candidate& a, const Candidate& b) {
    return a.addresses.height_bytes < b.addresses.height_bytes;
  };
  std::stable_sort(tried.begin(), tried.end(), smaller);
  tried.resize(std::min(tried.size(), kWithEffort));
  layout_options.node_budget = budget;
  layout_options.family_work = budget * 800;
  for (Candidate& candidate : tried) {
    if (should_stop && should_stop()) break;
    Candidate again = lay_out_one(graph, candidate.order, candidate.used, layout_options);
    work += again.addresses.work;
    if (smaller(again, candidate)) candidate = std::move(again);
    if (candidate.addresses.height_bytes <= found.peak_bytes) return std::move(candidate);
  }
  return std::move(*std::min_element(tried.begin(), tried.end(), smaller));
}

// Takeovers must not make a plan worse: unless `best` is below what any plan without them needs, the best of those is
// looked at too, with a part of the effort.
Candidate compare_without(const Graph& graph, PlanOptions options, Candidate best,
                          const std::function<bool()>& should_stop, std::int64_t& work) {
  options.takeover = false;
  options.order_node_budget /= 4;
  options.layout_node_budget /= 4;
  if (best.addresses.height_bytes <= plain_bound(graph)) return best;
  const OrderResult found = choose_orders(graph, options, should_stop);
  work += found.work;
  Candidate plain = lay_out(graph, found, options, should_stop, work);
  return plain.addresses.height_bytes < best.addresses.height_bytes ? plain : best;
}

// A lower peak is worth nothing where its addresses leave holes: whatever is larger than program order's peak is
// compared with program order.
Candidate compare_with_program(const Graph& graph, const PlanOptions& options, Candidate best,
                               const std::function<bool()>& should_stop, std::int64_t& work) {
  if (options.keep_order || best.addresses.height_bytes <= program_peak_bytes(graph)) return best;
  const std::vector<OpId> order = program_order(graph);
  const std::vector<TakeoverAt> used = options.takeover ? takeovers(graph, order) : std::vector<TakeoverAt>{};
  Candidate program = lay_out(graph, {{order}, peak_bytes(graph, order, used), 0, 0}, options, should_stop, work);
  return program.addresses.height_bytes < best.addresses.height_bytes ? program : best;
}

// What the device must hold even with recomputation and swapping: what one op needs at one tick, and what is returned.
std::int64_t any_plan_bound(const Graph& graph) {
  std::int64_t most = 0, returned = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) most = std::max(most, op_bytes(graph, OpId(i)));
  for (const Buffer& buffer : graph.buffers)
    if (buffer.returned) returned += graph.padded(buffer.bytes);
  return resident_bytes(graph) + std::max(most, returned);
}

void judge(const PlanOptions& options, bool stopped, PlanResult& result) {
  result.gap = gap(result.peak_bytes, result.lower_bound_bytes);
  result.outcome = result.peak_bytes <= result.lower_bound_bytes ? Outcome::kOptimal : Outcome::kFeasible;
  if (!options.budget_bytes) return;
  if (result.smallest_bytes <= *options.budget_bytes) {
    if (!result.step_bound_ns) result.step_bound_ns = result.program_step_ns;
    if (result.step_ns != result.step_bound_ns) result.outcome = Outcome::kFeasible;
    return;
  }
  const bool gave_up = stopped || options.method == Method::kRoam;
  result.outcome =
      gave_up && *options.budget_bytes >= result.budget_bound_bytes ? Outcome::kUnknown : Outcome::kInfeasible;
  result.plan.reset();
}

budget::Link link_of(const PlanOptions& options) { return {options.link_gbps}; }

// What recomputation and swapping start from: the order of least peak, program order, and program order where whatever
// lowers live bytes runs at once (what is dropped from the peak uncovers the heaps beside it: gradients that wait for
// their updates).
std::vector<std::vector<OpId>> base_orders(const Graph& graph, const PlanOptions& options, const OrderResult& found) {
  std::vector<std::vector<OpId>> orders{found.orders[0]};
  if (options.keep_order) return orders;
  std::vector<OpId> relieved;
  const OrderProblem problem = order_problem(graph, dependencies(graph), uses(graph));
  for (const std::int32_t op :
       greedy(problem, GreedyRule::kProgramOrder, std::numeric_limits<std::int64_t>::max() / 4).ops)
    relieved.emplace_back(op);
  for (std::vector<OpId> order : {std::move(relieved), program_order(graph)})
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
  return orders;
}

// Recomputation and swapping under any limits of one graph: they share the ladder of plans.
struct Squeeze {
  Squeeze(const Graph& graph, const PlanOptions& options, const OrderResult& found,
          const std::function<bool()>& should_stop, const PlanResult& free)
      : recipes(graph, options.takeover),
        orders(base_orders(graph, options, found)),
        ladder(recipes, orders, free.budget_bound_bytes - free.resident_bytes, free.plan->arena_bytes,
               how(options, should_stop)) {}

  [[nodiscard]] bool spent_all() const { return limited && limit > 0 && spent > limit; }
  Squeeze(const Squeeze&) = delete;
  Squeeze& operator=(const Squeeze&) = delete;

  budget::MeetOptions how(const PlanOptions& options, const std::function<bool()>& should_stop) {
    budget::MeetOptions how;
    how.link = link_of(options);
    how.seed = options.seed;
    how.spent = &spent;
    limit = options.budget_work;
    if (limit > 0) how.bound_work = std::min(how.bound_work, limit / 4);
    how.should_stop =
        limit == 0 ? should_stop : [this, should_stop] { return spent_all() || (should_stop && should_stop()); };
    return how;
  }

  std::int64_t limit = 0, spent = 0;
  bool limited = true;

  budget::Recipes recipes;
  std::vector<std::vector<OpId>> orders;
  budget::Ladder ladder;
};

// Recomputes and swaps so that the plan fits the budget. Without a plan, tells the smallest budget that has one.
void meet_budget(const Graph& graph, std::int64_t budget_bytes, budget::Ladder& ladder, PlanResult& result) {
  result.budget_bound_bytes = result.resident_bytes + ladder.least_capacity();
  std::optional<budget::Met> met = ladder.best_within(budget_bytes - result.resident_bytes);
  if (!met) {
    result.smallest_bytes = result.resident_bytes + ladder.smallest();
    return;
  }
  const budget::Schedule& schedule = met->schedule;
  result.step_bound_ns = std::max(result.program_step_ns, ladder.bound_ns(budget_bytes - result.resident_bytes));
  result.step_ns = schedule.step_ns;
  result.recomputed_ops = schedule.recomputed_ops;
  result.recompute_ns = schedule.recompute_ns;
  result.swapped_bytes = schedule.swapped_bytes;
  result.plan = budget::assemble(graph, std::move(*met));
  result.smallest_bytes = result.resident_bytes + result.plan->arena_bytes;
}

void report(const PlanOptions& options, std::string_view phase, double done) {
  if (options.progress) options.progress(phase, done);
}

// The default method. Sets the bound and the times in `result`; `found` becomes the orders that it chose from.
Candidate by_search(const Graph& graph, const PlanOptions& options, const std::function<bool()>& should_stop,
                    OrderResult& found, PlanResult& result) {
  report(options, "order", 0);
  const Stopwatch order_watch;
  found = choose_orders(graph, options, should_stop);
  result.lower_bound_bytes = found.bound_bytes;
  result.seconds.order = order_watch.seconds();
  report(options, "order", 1);

  report(options, "layout", 0);
  const Stopwatch layout_watch;
  result.work = found.work;
  Candidate best = lay_out(graph, found, options, should_stop, result.work);
  if (!best.used.empty() && best.addresses.height_bytes > found.bound_bytes)
    best = compare_without(graph, options, std::move(best), should_stop, result.work);
  best = compare_with_program(graph, options, std::move(best), should_stop, result.work);
  result.seconds.layout = layout_watch.seconds();
  report(options, "layout", 1);
  return best;
}

// The rival; the bound is that of must-live bytes and cuts. Its counts go into the plan's meta.
Candidate by_roam(const Graph& graph, const PlanOptions& options, const std::function<bool()>& should_stop,
                  PlanResult& result) {
  if (options.keep_order) throw Error("method roam decides the order: it cannot keep the program's");
  report(options, "order", 0);
  RoamCandidate found = plan_by_roam(graph, options, should_stop);
  result.lower_bound_bytes = root_bound(graph, order_work(graph, options));
  result.seconds.order = found.order_seconds;
  result.seconds.layout = found.layout_seconds;
  report(options, "layout", 1);
  return {std::move(found.order), {}, std::move(found.times), std::move(found.addresses), to_json(found.stats)};
}

// One graph, planned once without a limit and then within any number of limits.
class Planning {
 public:
  Planning(const Graph& graph, const PlanOptions& options)
      : graph_(graph), options_(options), should_stop_(stop_after(watch_, options.time_limit_seconds)) {
    free_.resident_bytes = resident_bytes(graph);
    free_.program_peak_bytes = program_peak_bytes(graph);
    free_.budget_bound_bytes = any_plan_bound(graph);
    free_.program_step_ns = program_step_ns(graph);
    free_.step_ns = free_.program_step_ns;
    const Candidate best =
        roam() ? by_roam(graph, options, should_stop_, free_) : by_search(graph, options, should_stop_, found_, free_);
    free_.peak_bytes = peak_bytes(graph, best.order, best.used);
    free_.plan = assemble(graph, best.order, best.times, best.addresses);
    free_.plan->meta = best.meta;
    free_.smallest_bytes = free_.resident_bytes + free_.plan->arena_bytes;
  }
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  PlanResult within(std::optional<std::int64_t> budget_bytes) {
    PlanResult result = free_;
    // Roam neither recomputes nor swaps
    const bool squeezed = budget_bytes && free_.smallest_bytes > *budget_bytes && !roam();
    if (squeezed) {
      report(options_, "budget", 0);
      const Stopwatch watch;
      if (!squeeze_) squeeze_.emplace(graph_, options_, found_, should_stop_, free_);
      squeeze_->limited = budget_bytes != options_.budget_bytes;
      meet_budget(graph_, *budget_bytes, squeeze_->ladder, result);
      result.seconds.budget = watch.seconds();
      report(options_, "budget", 1);
    }
    verify(squeezed, result);
    PlanOptions options = options_;
    options.budget_bytes = budget_bytes;
    const bool spent_all = squeezed && squeeze_->spent_all();
    judge(options, (should_stop_ && should_stop_()) || spent_all, result);
    if (spent_all && !result.plan) result.smallest_bytes = 0;  // not known
    result.seconds.total = watch_.seconds();
    return result;
  }

 private:
  [[nodiscard]] bool roam() const { return options_.method == Method::kRoam; }

  void verify(bool squeezed, PlanResult& result) const {
    report(options_, "verify", 0);
    const Stopwatch watch;
    const CheckReport checked = check(graph_, *result.plan);
    if (!checked.valid) throw Error("the planner made a plan that is not valid: " + checked.message);
    if (!squeezed && checked.peak_bytes != result.peak_bytes)
      throw Error("the planner and the checker disagree on the peak");
    result.peak_bytes = checked.peak_bytes;
    result.seconds.verify = watch.seconds();
    report(options_, "verify", 1);
  }

  const Graph& graph_;
  const PlanOptions& options_;
  Stopwatch watch_;
  std::function<bool()> should_stop_;
  OrderResult found_;
  PlanResult free_;  // without a limit
  std::optional<Squeeze> squeeze_;
};

}  // namespace

double gap(std::int64_t peak_bytes, std::int64_t lower_bound_bytes) {
  if (peak_bytes <= lower_bound_bytes || lower_bound_bytes == 0) return 0;
  return static_cast<double>(peak_bytes) / static_cast<double>(lower_bound_bytes) - 1;
}

// The same search as plan() with default options, so that both report one bound.
std::int64_t lower_bound_bytes(const Graph& graph) {
  return find_order(graph, {order_work(graph, PlanOptions{}), {}, true}).bound_bytes;
}

std::int64_t program_peak_bytes(const Graph& graph) { return peak_bytes(graph, program_order(graph)); }

PlanResult plan(const Graph& graph, const PlanOptions& options) {
  return Planning(graph, options).within(options.budget_bytes);
}

std::vector<PlanResult> plan_each(const Graph& graph, const PlanOptions& options,
                                  const std::function<std::vector<std::int64_t>(const PlanResult&)>& budgets) {
  Planning planning(graph, options);
  std::vector<PlanResult> results{planning.within(std::nullopt)};
  for (const std::int64_t budget : budgets(results[0])) results.push_back(planning.within(budget));
  return results;
}

}  // namespace stowage
