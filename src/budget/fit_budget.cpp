#include "budget/fit_budget.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "budget/cover.h"
#include "budget/ledger.h"
#include "budget/retime.h"
#include "budget/trim.h"

namespace stowage::budget {
namespace {

constexpr int kLimits = 6;             // of live bytes that are tried for one capacity
constexpr std::int64_t kRuins = 2500;  // tries times ops
// Ops; more than one sequence of a limit is laid out in a graph of at most so many
constexpr std::int32_t kSmall = 300;
constexpr std::size_t kPool = 6;
// Faster than any link: by its price, copies are always preferred to running kernels again
constexpr Link kFastLink{.bytes_per_ns = 64, .latency_ns = 1};

struct Try {
  Sequence sequence;
  std::int64_t ns = 0;
};

std::vector<CoverRule> rules(Link link) {
  if (!link.there()) return {CoverRule{.swap = false}};
  return {CoverRule{.lane_price = 0.02}, CoverRule{.lane_price = 0.5}};
}

// The fastest sequences found, fastest first; of equally fast ones the first.
using Pool = std::vector<Try>;

void add(Pool& pool, Try now) {
  const auto at =
      std::upper_bound(pool.begin(), pool.end(), now.ns, [](std::int64_t ns, const Try& t) { return ns < t.ns; });
  if (at != pool.begin() && (at - 1)->ns == now.ns && (at - 1)->sequence.line.size() == now.sequence.line.size())
    return;
  pool.insert(at, std::move(now));
  if (pool.size() > kPool) pool.pop_back();
}

// Undoes what is superfluous, times the copies, and measures.
void polish(const Recipes& recipes, Try& now, std::int64_t limit, const FitOptions& options, std::int64_t& work) {
  while (trim(recipes, now.sequence, limit, work) && work > 0) {
  }
  now.ns = schedule(recipes, now.sequence, options.link, {limit}).step_ns;
  Try timed = now;
  retime(recipes, timed.sequence, limit, options.link);
  timed.ns = schedule(recipes, timed.sequence, options.link, {limit}).step_ns;
  if (timed.ns < now.ns) now = std::move(timed);
}

// Notes what is gone of `given`.
struct Spending {
  const FitOptions& options;
  std::int64_t given;
  const std::int64_t& left;
  ~Spending() {
    if (options.spent != nullptr) *options.spent += given - left;
  }
};

// Ruin and recreate: what was done in a stretch of the line is undone and covered again, with other luck (Schrimpf et
// al., "Record breaking optimization results using the ruin and recreate principle", J. Comp. Phys. 159, 2000; here
// only improvements stay).
void improve(const Recipes& recipes, Pool& pool, std::int64_t limit, const FitOptions& options) {
  const std::int64_t program_ns = std::accumulate(recipes.cost.begin(), recipes.cost.end(), std::int64_t{0});
  Try best = pool[0];
  Random random(options.seed + 1);
  std::int64_t work = options.work;
  const Spending spending{options, options.work, work};
  const auto stopped = [&] { return options.should_stop && options.should_stop(); };
  for (std::int64_t i = 0; i < kRuins / (1 + recipes.ops) && best.ns > program_ns && work > 0 && !stopped(); ++i) {
    Try now = best;
    const auto size = static_cast<std::int64_t>(now.sequence.line.size());
    const std::int64_t length = 1 + random.below(std::max<std::int64_t>(1, size / (1 + random.below(6))));
    const std::int64_t from = random.below(std::max<std::int64_t>(1, size - length + 1));
    undo(recipes, now.sequence, static_cast<std::int32_t>(from),
         static_cast<std::int32_t>(std::min(size, from + length)));
    CoverRule rule = rules(options.link)[static_cast<std::size_t>(i) % rules(options.link).size()];
    rule.noise = 0.6 * random.unit();
    rule.seed = options.seed + static_cast<std::uint64_t>(i) + 1;
    if (!cover(recipes, now.sequence, limit, options.link, rule, work)) continue;
    polish(recipes, now, limit, options, work);
    if (now.ns < best.ns) best = now;
    add(pool, std::move(now));
  }
}

// Gives what is left of `work` back to `left`.
struct Refund {
  std::int64_t& left;
  const std::int64_t& work;
  ~Refund() { left += std::max<std::int64_t>(0, work); }
};

// The portfolio's sequences whose live bytes stay within `limit`.
Pool sequences_within(const Recipes& recipes, std::span<const std::vector<OpId>> orders, Link covering,
                      std::span<const CoverRule> first, std::int64_t limit, const FitOptions& options) {
  Pool pool;
  std::int64_t left = options.work;
  for (const std::vector<OpId>& order : orders)
    for (const CoverRule& rule : first) {
      Try now{Sequence::of(order), 0};
      std::int64_t work = pool.empty() ? left : left / 2;  // where others have a plan, this one may not take all
      left -= work;
      const Refund refund{left, work};
      const Spending spending{options, work, work};
      if (!cover(recipes, now.sequence, limit, covering, rule, work)) continue;
      polish(recipes, now, limit, options, work);
      add(pool, std::move(now));
    }
  if (!pool.empty()) improve(recipes, pool, limit, options);
  return pool;
}

class BudgetFit {
 public:
  BudgetFit(const Recipes& recipes, std::span<const std::vector<OpId>> orders, std::int64_t capacity,
            const FitOptions& options)
      : recipes_(recipes),
        orders_(orders),
        covering_(options.link),
        rules_(rules(options.link)),
        capacity_(capacity),
        options_(options) {
    layout_options_.align = recipes.graph->align;
    layout_options_.capacity = capacity;
    layout_options_.all_greedies = false;
    layout_options_.seed = options.seed;
    layout_options_.should_stop = options.should_stop;
  }

  // A limit of live bytes that leads to no layout is lowered by what the layouts were too high; one below which nothing
  // is found is raised half the way back.
  std::optional<Fitted> run() {
    std::optional<Fitted> fitted = search();
    if (fitted || !options_.link.there()) return fitted;
    const std::vector<CoverRule> both = std::exchange(rules_, {CoverRule{.swap = false}});
    if ((fitted = search())) return fitted;  // what fits without a link fits with one
    rules_ = both;
    covering_ = kFastLink;
    return search();  // what fits with a fast link fits with a slow one, and waits
  }

 private:
  std::optional<Fitted> search() {
    const std::int64_t align = recipes_.graph->align;
    const std::int64_t close = recipes_.ops <= kSmall ? 0 : capacity_ / 200;
    std::int64_t limit = capacity_, above = capacity_, nothing = 0;
    for (int round = 0; round < kLimits && above > nothing + (round == 0 ? 0 : close) && limit > nothing && !stopped();
         ++round) {
      const Pool pool = sequences_within(recipes_, orders_, covering_, rules_, limit, options_);
      if (pool.empty()) {
        nothing = limit;
        if (round == 0) break;
      } else {
        if (best_ && pool[0].ns >= best_->schedule.step_ns) break;
        // Of many layouts
        const std::int64_t nodes =
            recipes_.ops <= kSmall ? options_.layout_node_budget / 4 : options_.layout_node_budget;
        if (lay_out(pool, limit, nodes >> round)) break;  // lower limits leave more room
        above = std::min(limit - align, peak(pool[0]) - align);
        limit = std::min(above, limit - over_);
      }
      if (limit <= nothing) limit = nothing + (above - nothing) / 2;
    }
    return std::move(best_);
  }

  [[nodiscard]] bool stopped() const { return options_.should_stop && options_.should_stop(); }
  [[nodiscard]] std::int64_t peak(const Try& t) const { return Ledger(recipes_, t.sequence).live().max(); }

  // The fastest of the pool that can be laid out becomes the best; true when none of the pool is faster.
  bool lay_out(const Pool& pool, std::int64_t limit, std::int64_t node_budget) {
    over_ = capacity_;
    const std::size_t most = recipes_.ops <= kSmall ? pool.size() : 1;
    for (std::size_t i = 0; i < most; ++i) {
      if (best_ && pool[i].ns >= best_->schedule.step_ns) return false;
      layout_options_.node_budget = node_budget >> i;
      if (!lay_out(pool[i], limit)) continue;
      return pool[i].ns == pool[0].ns;
    }
    return false;
  }

  bool lay_out(const Try& t, std::int64_t limit) {
    std::size_t items = 0;
    for (const bool equal : {true, false}) {
      Fitted fitted;
      fitted.schedule = schedule(recipes_, t.sequence, options_.link, {limit, equal});
      if (fitted.schedule.timeline.items.size() == items) continue;  // the same again
      items = fitted.schedule.timeline.items.size();
      fitted.layout = layout(fitted.schedule.timeline.items, layout_options_);
      if (options_.spent != nullptr) *options_.spent += fitted.layout.work;
      over_ = std::min(over_, std::max<std::int64_t>(fitted.layout.height_bytes - capacity_, 1));
      if (fitted.layout.offsets.empty()) continue;
      best_ = std::move(fitted);
      return true;
    }
    return false;
  }

  const Recipes& recipes_;
  std::span<const std::vector<OpId>> orders_;
  Link covering_;                 // whose prices the first tries choose moves by
  std::vector<CoverRule> rules_;  // of the first tries
  std::int64_t capacity_;
  const FitOptions& options_;
  LayoutOptions layout_options_;
  std::int64_t over_ = 0;  // by how much the lowest layout of a limit was too high
  std::optional<Fitted> best_;
};

}  // namespace

std::optional<Fitted> fit_budget(const Recipes& recipes, std::span<const std::vector<OpId>> orders,
                                 std::int64_t capacity, const FitOptions& options) {
  return BudgetFit(recipes, orders, capacity, options).run();
}

}  // namespace stowage::budget
