#include "budget/meet.h"

#include <algorithm>
#include <numeric>

#include "budget/cover.h"
#include "budget/random.h"
#include "budget/retime.h"
#include "budget/trim.h"

namespace stowage::budget {
namespace {

constexpr int kLayouts = 8;
constexpr std::int64_t kRuins = 5000;  // tries times ops

struct Try {
  Sequence sequence;
  std::int64_t ns = 0;
};

std::vector<CoverRule> rules(Link link) {
  if (!link.there()) return {CoverRule{.swap = false}};
  return {CoverRule{.lane_price = 0.02}, CoverRule{.lane_price = 0.5}};
}

// Undoes what is superfluous, times the copies, and measures.
void polish(const Recipes& recipes, Try& now, std::int64_t limit, const MeetOptions& options, std::int64_t& work) {
  while (trim(recipes, now.sequence, limit, work) && work > 0) {}
  now.ns = schedule(recipes, now.sequence, options.link, {limit}).step_ns;
  Try timed = now;
  retime(recipes, timed.sequence, limit, options.link);
  timed.ns = schedule(recipes, timed.sequence, options.link, {limit}).step_ns;
  if (timed.ns < now.ns) now = std::move(timed);
}

// Ruin and recreate: what was done in a stretch of the line is undone and covered again, with other luck (Schrimpf et al., "Record
// breaking optimization results using the ruin and recreate principle", J. Comp. Phys. 159, 2000; here only improvements stay).
void improve(const Recipes& recipes, Try& best, std::int64_t limit, const MeetOptions& options) {
  const std::int64_t program_ns = std::accumulate(recipes.cost.begin(), recipes.cost.end(), std::int64_t{0});
  Random random(options.seed + 1);
  for (std::int64_t i = 0; i < kRuins / (1 + recipes.ops) && best.ns > program_ns; ++i) {
    Try now = best;
    const auto size = static_cast<std::int64_t>(now.sequence.line.size());
    const std::int64_t length = 1 + random.below(std::max<std::int64_t>(1, size / (1 + random.below(6))));
    const std::int64_t from = random.below(std::max<std::int64_t>(1, size - length + 1));
    undo(recipes, now.sequence, static_cast<std::int32_t>(from), static_cast<std::int32_t>(std::min(size, from + length)));
    CoverRule rule = rules(options.link)[static_cast<std::size_t>(i) % rules(options.link).size()];
    rule.noise = 0.6 * random.unit();
    rule.seed = options.seed + static_cast<std::uint64_t>(i) + 1;
    std::int64_t work = options.work;
    if (!cover(recipes, now.sequence, limit, options.link, rule, work)) continue;
    polish(recipes, now, limit, options, work);
    if (now.ns < best.ns) best = std::move(now);
  }
}

// Gives what is left of `work` back to `left`.
struct Refund {
  std::int64_t& left;
  const std::int64_t& work;
  ~Refund() { left += std::max<std::int64_t>(0, work); }
};

// The best of the portfolio whose live bytes stay within `limit`.
std::optional<Try> fit(const Recipes& recipes, std::span<const std::vector<OpId>> orders, std::int64_t limit, const MeetOptions& options) {
  std::optional<Try> best;
  std::int64_t left = options.work;
  for (const std::vector<OpId>& order : orders)
    for (const CoverRule& rule : rules(options.link)) {
      Try now{Sequence::of(order), 0};
      std::int64_t work = best ? left / 2 : left;  // where others have a plan, this one may not take all
      left -= work;
      const Refund refund{left, work};
      if (!cover(recipes, now.sequence, limit, options.link, rule, work)) continue;
      polish(recipes, now, limit, options, work);
      if (!best || now.ns < best->ns) best = std::move(now);
    }
  if (best) improve(recipes, *best, limit, options);
  return best;
}

}  // namespace

std::optional<Met> meet(const Recipes& recipes, std::span<const std::vector<OpId>> orders, std::int64_t capacity, const MeetOptions& options) {
  std::int64_t limit = capacity;
  LayoutOptions layout_options;
  layout_options.align = recipes.graph->align;
  layout_options.capacity = capacity;
  layout_options.seed = options.seed;
  layout_options.should_stop = options.should_stop;
  for (int round = 0; round < kLayouts && limit > 0; ++round) {
    if (options.should_stop && options.should_stop()) return std::nullopt;
    std::optional<Try> found = fit(recipes, orders, limit, options);
    if (!found) return std::nullopt;
    layout_options.node_budget = options.layout_node_budget;
    std::int64_t over = capacity;
    std::size_t items = 0;
    for (const bool equal : {true, false}) {
      Met met;
      met.schedule = schedule(recipes, found->sequence, options.link, {limit, equal});
      if (met.schedule.items.size() == items) continue;  // the same again
      items = met.schedule.items.size();
      met.layout = layout(met.schedule.items, layout_options);
      if (!met.layout.offsets.empty()) return met;
      over = std::min(over, std::max<std::int64_t>(met.layout.height_bytes - capacity, 1));
    }
    limit = std::min(limit - recipes.graph->align, limit - over);
  }
  return std::nullopt;
}

Plan assemble(const Graph& graph, Met met) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = graph.align;
  plan.arena_bytes = met.layout.height_bytes;
  const std::vector<std::int64_t>& offsets = met.layout.offsets;
  plan.steps = std::move(met.schedule.steps);
  plan.placements = std::move(met.schedule.placements);
  plan.scratch = std::move(met.schedule.scratch);
  const std::vector<std::int32_t>& item_of = met.schedule.item_of;
  for (std::size_t i = 0; i < plan.placements.size(); ++i) plan.placements[i].offset = offsets[item_of[i]];
  for (std::size_t i = 0; i < plan.scratch.size(); ++i) plan.scratch[i].offset = offsets[item_of[plan.placements.size() + i]];
  return plan;
}

}  // namespace stowage::budget
