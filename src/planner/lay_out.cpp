#include "planner/lay_out.h"

#include <algorithm>
#include <utility>

#include "planner/effort.h"
#include "planner/lay_out_by_roam.h"

namespace stowage {
namespace {

using Pairs = std::vector<ReuseAt>;  // by step

// Which pairs to use, several ways, the one to try first in front: all that fit, then only those without which a step
// would exceed `peak`, then none. A pair of unequal sizes is used only where it is needed.
std::vector<Pairs> reuse_choices(const OrderedGraph& ordered, std::int64_t peak) {
  if (ordered.reuse.empty()) return std::vector<Pairs>(1);
  const IdVector<BufferId, std::int64_t>& bytes = ordered.analysed->bytes;
  const std::vector<std::int64_t> plain = step_bytes(ordered, {});
  Pairs easy, needed;
  for (const ReuseAt& at : ordered.reuse) {
    const bool must = plain[at.step] > peak;
    const bool fits = bytes[at.pair.read] == bytes[at.pair.created];
    if (must) needed.push_back(at);
    if (must || fits) easy.push_back(at);
  }
  std::vector<Pairs> choices{std::move(easy)};
  if (needed.size() < choices[0].size()) choices.push_back(needed);
  if (!needed.empty()) choices.emplace_back();
  return choices;
}

bool smaller(const LaidOut& a, const LaidOut& b) { return a.layout.height_bytes < b.layout.height_bytes; }

class Stage {
 public:
  Stage(const OrderModel& model, const PlanOptions& options, const std::function<bool()>& should_stop,
        std::int64_t& work)
      : model_(model), options_(options), should_stop_(should_stop), work_(work) {}

  LaidOut run(const OrderResult& found) {
    LaidOut best = smallest(found, options_.takeover, 1);
    if (!best.used.empty() && best.layout.height_bytes > found.bound_bytes) best = or_without_reuse(std::move(best));
    return or_program_order(std::move(best));
  }

 private:
  // Lays out the orders until one fits without a hole: first all of them quickly, then the most promising with a
  // `share`-th of the effort. Gives the smallest arena.
  LaidOut smallest(const OrderResult& found, bool in_place_reuse, std::int64_t share) {
    constexpr std::size_t kWithEffort = 2;
    const Effort effort(model_.graph.graph.ops.size(), options_, share);
    std::int64_t quick_work = effort.quick_work;
    LayoutOptions quick;
    quick.align = model_.graph.graph.align;
    quick.seed = options_.seed;
    quick.should_stop = should_stop_;
    quick.node_budget = 0;
    quick.all_greedies = false;
    std::vector<LaidOut> tried;
    for (const std::vector<OpId>& order : found.orders) {
      const auto ordered = std::make_shared<const OrderedGraph>(model_.graph, order);
      for (const auto& used : in_place_reuse ? reuse_choices(*ordered, found.peak_bytes) : std::vector<Pairs>(1)) {
        quick.family_work = std::min(quick_work, effort.layout_work);
        tried.push_back(laid_out(ordered, used, quick));
        quick_work -= tried.back().layout.work;
        if (tried.back().layout.height_bytes <= found.peak_bytes) return std::move(tried.back());
      }
      if (quick_work <= 0 || stopped()) break;
    }
    std::stable_sort(tried.begin(), tried.end(), smaller);
    tried.resize(std::min(tried.size(), kWithEffort));
    LayoutOptions whole = quick;
    whole.node_budget = effort.layout_nodes;
    whole.family_work = effort.layout_work;
    for (LaidOut& candidate : tried) {
      if (stopped()) break;
      LaidOut again = laid_out(candidate.ordered, candidate.used, whole);
      if (smaller(again, candidate)) candidate = std::move(again);
      if (candidate.layout.height_bytes <= found.peak_bytes) return std::move(candidate);
    }
    return std::move(*std::min_element(tried.begin(), tried.end(), smaller));
  }

  LaidOut laid_out(std::shared_ptr<const OrderedGraph> ordered, Pairs used, const LayoutOptions& options) {
    Timeline times = timeline(*ordered, used);
    LayoutResult addresses = layout(times.items, options);
    work_ += addresses.work;
    return {std::move(ordered), std::move(used), std::move(times), std::move(addresses)};
  }

  // In-place reuse must not make a plan worse: unless `best` is below what any plan without it needs, the best of those
  // is looked at too, with a part of the effort.
  LaidOut or_without_reuse(LaidOut best) {
    constexpr std::int64_t kShare = 4;
    if (best.layout.height_bytes <= plain_bound(model_)) return best;
    PlanOptions without = options_;
    without.takeover = false;
    const Effort effort(model_.graph.graph.ops.size(), options_, kShare);
    const OrderResult found = search_orders(model_, without, effort.order_work, should_stop_);
    work_ += found.work;
    LaidOut plain = smallest(found, false, kShare);
    return smaller(plain, best) ? std::move(plain) : std::move(best);
  }

  // A lower peak is worth nothing where its addresses leave holes: what is larger than program order's peak is compared
  // with program order.
  LaidOut or_program_order(LaidOut best) {
    if (options_.keep_order || best.layout.height_bytes <= model_.program_peak_bytes) return best;
    PlanOptions keep = options_;
    keep.keep_order = true;
    LaidOut program = smallest(search_orders(model_, keep, 0, should_stop_), options_.takeover, 1);
    return smaller(program, best) ? std::move(program) : std::move(best);
  }

  [[nodiscard]] bool stopped() const { return should_stop_ && should_stop_(); }

  const OrderModel& model_;
  const PlanOptions& options_;
  const std::function<bool()>& should_stop_;
  std::int64_t& work_;
};

}  // namespace

LaidOut lay_out(const OrderModel& model, const ChosenOrders& orders, const PlanOptions& options,
                const std::function<bool()>& should_stop, std::int64_t& work) {
  if (options.method == Method::kRoam) return lay_out_by_roam(model, orders, options, should_stop);
  return Stage(model, options, should_stop, work).run(orders.found);
}

}  // namespace stowage
