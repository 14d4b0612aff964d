#include "budget/fit_budget.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "budget/improve.h"
#include "budget/ledger.h"
#include "budget/portfolio.h"

namespace stowage::budget {
namespace {

constexpr int kLimits = 6;                // of live bytes that are tried for one capacity
constexpr std::int64_t kRuins = 2500;     // tries times ops
constexpr std::int64_t kRuinsOfAnOp = 4;  // tries over ops: of few ops there are few sequences
// Faster than any link: by its price, copies are always preferred to running kernels again
constexpr Link kFastLink{.bytes_per_ns = 64, .latency_ns = 1};

class BudgetFit {
 public:
  BudgetFit(const Recipes& recipes, std::span<const std::vector<OpId>> orders, std::int64_t capacity,
            const FitOptions& options)
      : recipes_(recipes),
        orders_(orders),
        covering_(options.link),
        swap_(options.link.there()),
        capacity_(capacity),
        options_(options),
        program_ns_(std::accumulate(recipes.cost.begin(), recipes.cost.end(), std::int64_t{0})) {
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
    if (fitted || !swap_) return fitted;
    swap_ = false;
    if ((fitted = search())) return fitted;  // what fits without a link fits with one
    swap_ = true;
    covering_ = kFastLink;
    return search();  // what fits with a fast link fits with a slow one, and waits
  }

  // Ruin and recreate, from what run() has found.
  void improve_further(Fitted& fitted) {
    best_ = std::move(fitted);
    const std::int64_t ops = recipes_.ops, of_few = std::min<std::int64_t>(ops, kFewOps);
    const std::int64_t given =
        std::min(options_.improve_work, kImproveWork * of_few * of_few / (kFewOps * kFewOps) * ops * ops);
    std::int64_t work = given;
    const Spending spending{options_, given, work};
    layout_options_.node_budget = options_.layout_node_budget / 4;
    const std::int64_t limit = best_->limit;
    const double price = best_->lane_price;
    improve(recipes_, {best_->sequence, best_->schedule.step_ns}, improve_options(limit, price, kMostTries), work,
            [&](const Attempt& now) {
              if (now.ns >= best_->schedule.step_ns) return false;
              const bool laid_out = lay_out(now, limit);
              work -= 200'000 + layout_work_;
              return laid_out;
            });
    best_->lane_price = price;
    fitted = std::move(*best_);
  }

 private:
  static constexpr std::int64_t kMostTries = 1'000'000;
  static constexpr std::int64_t kImproveWork = 3'000;  // over the square of the ops, at most
  static constexpr std::int64_t kFewOps = 32;          // below, there is less to find: less by another square

  // Notes what is gone of `given`.
  struct Spending {
    const FitOptions& options;
    std::int64_t given;
    const std::int64_t& left;
    ~Spending() {
      if (options.spent != nullptr) *options.spent += given - left;
    }
  };

  [[nodiscard]] ImproveOptions improve_options(std::int64_t limit, double lane_price, std::int64_t tries) const {
    return {.link = options_.link,
            .limit = limit,
            .lane_price = lane_price,
            .seed = options_.seed,
            .tries = tries,
            .least_ns = program_ns_,
            .should_stop = options_.should_stop};
  }

  std::optional<Fitted> search() {
    const std::int64_t align = recipes_.graph->align;
    const std::int64_t close = recipes_.ops <= kSmallOps ? 0 : capacity_ / 200;
    std::int64_t limit = capacity_, above = capacity_, nothing = 0;
    for (int round = 0; round < kLimits && above > nothing + (round == 0 ? 0 : close) && limit > nothing && !stopped();
         ++round) {
      Pool pool = sequences_within(limit);
      if (pool.empty()) {
        nothing = limit;
        if (round == 0) break;
      } else {
        // Of many layouts
        const std::int64_t nodes =
            recipes_.ops <= kSmallOps ? options_.layout_node_budget / 4 : options_.layout_node_budget;
        layout_options_.node_budget = nodes >> round;
        if (pool[0].ns <= options_.least_ns && lay_out(pool[0], limit)) break;
        find_more_within(limit, pool);
        if (best_ && pool[0].ns >= best_->schedule.step_ns) break;
        if (lay_out(pool, limit, nodes >> round)) break;  // lower limits leave more room
        above = std::min(limit - align, peak(pool[0]) - align);
        limit = std::min(above, limit - over_);
      }
      if (limit <= nothing) limit = nothing + (above - nothing) / 2;
    }
    return std::move(best_);
  }

  // The fastest sequences found whose live bytes stay within `limit`.
  Pool sequences_within(std::int64_t limit) {
    Portfolio portfolio(recipes_,
                        {.link = options_.link, .covering = covering_, .limit = limit, .work = options_.work});
    for (const std::vector<OpId>& order : orders_) portfolio.add_order(order, swap_);
    if (options_.spent != nullptr) *options_.spent += portfolio.spent();
    lane_price_ = portfolio.lane_price();
    return portfolio.pool();
  }

  void find_more_within(std::int64_t limit, Pool& pool) {
    std::int64_t work = options_.work;
    const Spending spending{options_, options_.work, work};
    std::int64_t best = pool[0].ns;
    const std::int64_t ops = recipes_.ops, tries = std::min(kRuins / (1 + ops), kRuinsOfAnOp * ops);
    improve(recipes_, pool[0], improve_options(limit, lane_price_, tries), work, [&](const Attempt& now) {
      pool.add(now);
      return now.ns < std::exchange(best, std::min(best, now.ns));
    });
  }

  [[nodiscard]] bool stopped() const { return options_.should_stop && options_.should_stop(); }
  [[nodiscard]] std::int64_t peak(const Attempt& t) const { return Ledger(recipes_, t.sequence).live().max(); }

  // The fastest of the pool that can be laid out becomes the best; true when none of the pool is faster.
  bool lay_out(const Pool& pool, std::int64_t limit, std::int64_t node_budget) {
    over_ = capacity_;
    const std::size_t most = recipes_.ops <= kSmallOps ? pool.size() : 1;
    for (std::size_t i = 0; i < most; ++i) {
      if (best_ && pool[i].ns >= best_->schedule.step_ns) return false;
      layout_options_.node_budget = node_budget >> i;
      if (!lay_out(pool[i], limit)) continue;
      return pool[i].ns == pool[0].ns;
    }
    return false;
  }

  bool lay_out(const Attempt& t, std::int64_t limit) {
    std::size_t items = 0;
    layout_work_ = 0;
    for (const bool equal : {true, false}) {
      Fitted fitted;
      fitted.schedule = schedule(recipes_, t.sequence, options_.link, {limit, equal});
      if (fitted.schedule.timeline.items.size() == items) continue;  // the same again
      items = fitted.schedule.timeline.items.size();
      fitted.layout = layout(fitted.schedule.timeline.items, layout_options_);
      layout_work_ += fitted.layout.work;
      if (options_.spent != nullptr) *options_.spent += fitted.layout.work;
      over_ = std::min(over_, std::max<std::int64_t>(fitted.layout.height_bytes - capacity_, 1));
      if (fitted.layout.offsets.empty()) continue;
      fitted.sequence = t.sequence;
      fitted.limit = limit;
      fitted.lane_price = lane_price_;
      best_ = std::move(fitted);
      return true;
    }
    return false;
  }

  const Recipes& recipes_;
  std::span<const std::vector<OpId>> orders_;
  Link covering_;  // whose prices the first tries choose moves by
  bool swap_;
  std::int64_t capacity_;
  const FitOptions& options_;
  std::int64_t program_ns_;
  LayoutOptions layout_options_;
  double lane_price_ = 0;         // of the best rule of the latest limit
  std::int64_t over_ = 0;         // by how much the lowest layout of a limit was too high
  std::int64_t layout_work_ = 0;  // of the latest sequence
  std::optional<Fitted> best_;
};

}  // namespace

std::optional<Fitted> fit_budget(const Recipes& recipes, std::span<const std::vector<OpId>> orders,
                                 std::int64_t capacity, const FitOptions& options) {
  return BudgetFit(recipes, orders, capacity, options).run();
}

void improve_fit(const Recipes& recipes, Fitted& fitted, std::int64_t capacity, const FitOptions& options) {
  BudgetFit(recipes, {}, capacity, options).improve_further(fitted);
}

}  // namespace stowage::budget
