#include "planner/away_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/concat.h"
#include "budget/timing.h"
#include "layout/timeline.h"
#include "stowage/layout.h"

namespace stowage {
namespace {

constexpr int kTries = 6;  // of spreading out, each below a lower limit

// The steps that stay as they are, op runs and other swaps, have positions 0, 1, … in their order. Each copy of a resident
// is issued in the slot before a position.
class Spreader {
 public:
  Spreader(const Graph& graph, const AwayGraph& away, const std::vector<BufferId>& sent, const Plan& planned,
           std::int64_t capacity, budget::Link link)
      : graph_(graph), away_(away), sent_(sent), from_(planned), capacity_(capacity), link_(link) {}

  AwayPlan run() {
    find_needless();
    number_steps();
    find_copies();
    measure();
    AwayPlan best = written({});
    std::int64_t limit = capacity_;
    for (int i = 0; i < kTries && limit > least_; ++i) {
      extend(limit);
      Timeline times = write();
      LayoutOptions options;
      options.align = graph_.align;
      options.capacity = capacity_;
      options.all_greedies = false;
      options.node_budget = 60'000;
      const LayoutResult layout = stowage::layout(times.items, options);
      if (layout.offsets.empty() || layout.height_bytes > capacity_) {
        limit -= std::max(graph_.align, std::max((limit - least_) / 4, layout.height_bytes - capacity_));
        continue;
      }
      AwayPlan spread = figures(assemble(graph_, std::move(times), layout));
      if (spread.step_ns < best.step_ns) best = std::move(spread);
      break;
    }
    return best;
  }

 private:
  struct Fetch {
    BufferId buffer;
    std::int32_t planned = 0;  // step of the given plan
    std::int32_t base = 0;     // slot
    std::int32_t need = 0;     // position of its first use
    std::int32_t at = 0;       // slot in which it is issued
  };
  struct Store {
    BufferId buffer;
    std::int32_t planned = 0;
    std::int32_t base = 0;   // slot in which it is issued
    std::int32_t until = 0;  // slot in which it must be complete
  };

  [[nodiscard]] const AwayGraph::Origin* origin(std::size_t step) const {
    return from_.steps[step].kind == Step::Kind::kRun ? &away_.origin[from_.steps[step].op.index()] : nullptr;
  }
  [[nodiscard]] bool stays(std::size_t step) const {
    const AwayGraph::Origin* of = origin(step);
    return of == nullptr ? !needless_[step] : of->kind == AwayGraph::Kind::kRun;
  }

  // Where a copy on the host already is what a resident ends with, it need not be stored; nor brought back for that.
  void find_needless() {
    needless_.assign(from_.steps.size(), false);
    for (std::size_t s = 0; s < from_.steps.size(); ++s) {
      if (origin(s) == nullptr || origin(s)->kind != AwayGraph::Kind::kStore || !on_host_before(s)) continue;
      needless_[s] = true;
      const BufferId b = origin(s)->buffer;
      for (const Placement& p : from_.placements) {
        const auto from = static_cast<std::size_t>(p.from), to = static_cast<std::size_t>(p.to);
        if (p.buffer != b || s < from || s >= to || from_.steps[from].kind != Step::Kind::kSwapIn) continue;
        bool used = false;
        for (std::size_t i = from + 1; i < to; ++i) used = used || (i != s && step_touches(i, b));
        if (used) continue;
        needless_[from] = true;
        dropped_.push_back(p.from);
      }
    }
  }
  [[nodiscard]] bool on_host_before(std::size_t store) const {
    const BufferId b = origin(store)->buffer;
    for (std::size_t s = store; s-- > 0;) {
      const Step& step = from_.steps[s];
      if (step.kind == Step::Kind::kSwapOut && step.buffer == b) return true;
      if (step.kind != Step::Kind::kRun) continue;
      const Op& op = away_.graph.op(step.op);
      for (const auto* list : {&op.writes, &op.creates})
        if (std::find(list->begin(), list->end(), b) != list->end()) return false;
    }
    return false;
  }

  // slot_[s]: how many of the steps that stay come before step s.
  void number_steps() {
    for (std::size_t s = 0; s < from_.steps.size(); ++s) {
      slot_.push_back(static_cast<std::int32_t>(kept_.size()));
      if (stays(s)) kept_.push_back(s);
    }
    slot_.push_back(static_cast<std::int32_t>(kept_.size()));
  }

  [[nodiscard]] bool touches(std::size_t position, BufferId buffer) const {
    return step_touches(kept_[position], buffer);
  }
  [[nodiscard]] bool step_touches(std::size_t index, BufferId buffer) const {
    const Step& step = from_.steps[index];
    if (step.kind != Step::Kind::kRun) return step.buffer == buffer;
    const Op& op = away_.graph.op(step.op);
    for (const auto* list : {&op.reads, &op.writes})
      if (std::find(list->begin(), list->end(), buffer) != list->end()) return true;
    return false;
  }

  void find_copies() {
    for (std::size_t s = 0; s < from_.steps.size(); ++s) {
      if (stays(s) || origin(s) == nullptr) continue;
      const BufferId b = origin(s)->buffer;
      if (origin(s)->kind == AwayGraph::Kind::kStore) {
        if (stored(b) || needless_[s]) continue;  // or a second run of the look at what is left
        store_of_[static_cast<std::int32_t>(s)] = stores_.size();
        stores_.push_back({b, static_cast<std::int32_t>(s), slot_[s], slot_[s]});
        continue;
      }
      auto need = static_cast<std::size_t>(slot_[s]);
      const auto end = static_cast<std::size_t>(slot_[static_cast<std::size_t>(placement_from(s).to)]);
      while (need < end && !touches(need, b)) ++need;
      if (need == end) {  // fetched for nobody: made again where it is needed
        dropped_.push_back(static_cast<std::int32_t>(s));
        continue;
      }
      fetch_of_[static_cast<std::int32_t>(s)] = fetches_.size();
      fetches_.push_back({b, static_cast<std::int32_t>(s), slot_[s], static_cast<std::int32_t>(need), slot_[s]});
    }
  }
  [[nodiscard]] const Placement& placement_from(std::size_t step) const {
    return *std::find_if(from_.placements.begin(), from_.placements.end(), [&](const Placement& p) {
      return p.from == static_cast<std::int32_t>(step) && p.buffer == origin(step)->buffer;
    });
  }
  [[nodiscard]] bool dropped(const Placement& p) const {
    return std::find(dropped_.begin(), dropped_.end(), p.from) != dropped_.end();
  }
  [[nodiscard]] bool stored(BufferId b) const {
    return std::any_of(stores_.begin(), stores_.end(), [&](const Store& s) { return s.buffer == b; });
  }

  // Live bytes at each position of the plan as it came, and when each starts if no copy is late.
  void measure() {
    live_.assign(kept_.size() + 1, 0);
    std::vector<std::int64_t> change(kept_.size() + 2, 0);
    for (const Placement& p : from_.placements) {
      const std::int64_t bytes = graph_.padded(graph_.buffer(p.buffer).bytes);
      change[static_cast<std::size_t>(slot_[static_cast<std::size_t>(p.from)])] += bytes;
      change[static_cast<std::size_t>(slot_[static_cast<std::size_t>(p.to)])] -= bytes;
    }
    std::int64_t now = 0;
    start_.push_back(0);
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      live_[i] = now += change[i];
      const Step& step = from_.steps[kept_[i]];
      std::int64_t cost = 0;
      if (step.kind == Step::Kind::kRun) {
        const Op& op = away_.graph.op(step.op);
        cost = op.cost_ns;
        for (const Scratch& s : op.scratch) live_[i] += graph_.padded(s.bytes);
      }
      start_.push_back(start_.back() + cost);
    }
    least_ = 0;
    for (const std::int64_t bytes : live_) least_ = std::max(least_, bytes);
    least_ = std::min(least_, capacity_);
  }

  void extend(std::int64_t limit) {
    std::vector<std::int64_t> live = live_;
    for (Fetch& f : fetches_) f.at = f.base;
    for (Store& s : stores_) s.until = s.base;
    const auto room = [&](std::int32_t at, BufferId b) {
      return live[static_cast<std::size_t>(at)] + graph_.padded(graph_.buffer(b).bytes) <= limit;
    };
    const auto add = [&](std::int32_t at, BufferId b) {
      live[static_cast<std::size_t>(at)] += graph_.padded(graph_.buffer(b).bytes);
    };
    std::vector<Fetch*> by_need;
    for (Fetch& f : fetches_) by_need.push_back(&f);
    std::stable_sort(by_need.begin(), by_need.end(), [](const Fetch* a, const Fetch* b) { return a->need > b->need; });
    std::int64_t lane = start_.back();
    for (Fetch* f : by_need) {
      lane = std::min(lane, start_[static_cast<std::size_t>(f->need)]) - duration(f->buffer);
      const std::int32_t first = earliest(*f);
      while (f->at > first && start_[static_cast<std::size_t>(f->at)] > lane && room(f->at - 1, f->buffer))
        add(--f->at, f->buffer);
    }
    lane = 0;
    for (Store& s : stores_) {
      lane = std::max(lane, start_[static_cast<std::size_t>(s.base)]) + duration(s.buffer);
      const auto end = static_cast<std::int32_t>(kept_.size());
      while (s.until < end && start_[static_cast<std::size_t>(s.until)] < lane && room(s.until, s.buffer))
        add(s.until++, s.buffer);
    }
  }

  // A buffer has one placement at a time: a fetch cannot come before the one before it has ended.
  [[nodiscard]] std::int32_t earliest(const Fetch& f) const {
    std::int32_t first = 0;
    for (const Placement& p : from_.placements)
      if (p.buffer == f.buffer && p.to <= f.planned) first = std::max(first, slot_[static_cast<std::size_t>(p.to)] + 1);
    return std::min(first, f.base);
  }

  [[nodiscard]] std::int64_t duration(BufferId b) const { return link_.duration(graph_.buffer(b).bytes); }

  // The steps in their order, and where each of the given plan's has gone.
  void write_steps(std::vector<Step>& steps) {
    const auto here = [&] { return static_cast<std::int32_t>(steps.size()); };
    step_of_.assign(from_.steps.size() + 1, -1);
    free_.clear();
    in_step_.assign(fetches_.size(), -1);
    std::vector<std::int32_t> out_step(stores_.size(), -1);
    std::vector<std::int32_t> at_position;
    std::vector<std::vector<std::size_t>> stores(kept_.size() + 1), fetches(kept_.size() + 1);
    for (std::size_t i = 0; i < stores_.size(); ++i) stores[static_cast<std::size_t>(stores_[i].base)].push_back(i);
    for (std::size_t i = 0; i < fetches_.size(); ++i) fetches[static_cast<std::size_t>(fetches_[i].at)].push_back(i);
    for (std::size_t i = 0; i <= kept_.size(); ++i) {
      for (const std::size_t s : stores[i]) {
        out_step[s] = here();
        steps.push_back({Step::Kind::kSwapOut, {}, stores_[s].buffer, -1});
      }
      free_.push_back(here());
      std::stable_sort(fetches[i].begin(), fetches[i].end(),
                       [&](std::size_t a, std::size_t b) { return fetches_[a].need < fetches_[b].need; });
      for (const std::size_t f : fetches[i]) {
        in_step_[f] = here();
        steps.push_back({Step::Kind::kSwapIn, {}, fetches_[f].buffer, -1});
      }
      at_position.push_back(here());
      if (i == kept_.size()) break;
      step_of_[kept_[i]] = here();
      Step step = from_.steps[kept_[i]];
      if (step.kind == Step::Kind::kRun) step.op = away_.origin[step.op.index()].op;
      steps.push_back(step);
    }
    for (std::size_t i = 0; i < stores_.size(); ++i)
      steps[static_cast<std::size_t>(out_step[i])].until = free_[static_cast<std::size_t>(stores_[i].until)];
    for (std::size_t i = 0; i < fetches_.size(); ++i)
      steps[static_cast<std::size_t>(in_step_[i])].until = at_position[static_cast<std::size_t>(fetches_[i].need)];
    for (const std::size_t s : kept_) {
      Step& step = steps[static_cast<std::size_t>(step_of_[s])];
      if (step.kind == Step::Kind::kRun) continue;
      const auto slot = static_cast<std::size_t>(slot_[static_cast<std::size_t>(step.until)]);
      step.until = step.kind == Step::Kind::kSwapIn ? at_position[slot] : end_at(step.until);
    }
    steps_ = here();
  }

  [[nodiscard]] std::int32_t begin_of(const Placement& p) const {
    const auto fetch = fetch_of_.find(p.from);
    return fetch != fetch_of_.end() ? in_step_[fetch->second] : step_of_[static_cast<std::size_t>(p.from)];
  }
  // Where something is over that is over at step `to` of the given plan.
  [[nodiscard]] std::int32_t end_at(std::int32_t to) const {
    const std::size_t before = static_cast<std::size_t>(to) - 1;
    if (stays(before) && from_.steps[before].kind == Step::Kind::kRun) return step_of_[before] + 1;
    return free_[static_cast<std::size_t>(slot_[static_cast<std::size_t>(to)])];
  }
  [[nodiscard]] std::int32_t end_of(const Placement& p) const {
    if (p.to == static_cast<std::int32_t>(from_.steps.size())) {
      const auto last = store_of_.find(p.to - 1);
      if (last == store_of_.end() || stores_[last->second].buffer != p.buffer) return steps_;
    }
    std::int32_t end = end_at(p.to);
    for (const Store& s : stores_)
      if (s.buffer == p.buffer && p.from < s.planned && s.planned < p.to)
        end = std::max(end, free_[static_cast<std::size_t>(s.until)]);
    return end;
  }

  // What lies over what by in-place reuse, as in rule 6.
  [[nodiscard]] BufferId over(const Placement& c) const {
    const Step& step = from_.steps[static_cast<std::size_t>(c.from)];
    if (step.kind != Step::Kind::kRun) return {};
    for (const ReusePair& pair : away_.graph.op(step.op).takeover) {
      if (pair.created != c.buffer) continue;
      for (const Placement& r : from_.placements)
        if (r.buffer == pair.read && r.to == c.from + 1 && r.offset == c.offset && graph_.buffer(c.buffer).bytes > 0)
          return pair.read;
    }
    return {};
  }

  Timeline write() {
    std::vector<Step> steps;
    write_steps(steps);
    std::vector<Piece> pieces;
    for (const Placement& p : from_.placements) {
      if (dropped(p)) continue;
      Piece piece{p.buffer, begin_of(p), end_of(p), 0, over(p)};
      const Step& step = from_.steps[static_cast<std::size_t>(p.from)];
      if (step.kind == Step::Kind::kRun && stays(static_cast<std::size_t>(p.from))) {
        const Op& op = away_.graph.op(step.op);
        const auto at = std::find(op.creates.begin(), op.creates.end(), p.buffer) - op.creates.begin();
        piece.tick = born_tick(op, static_cast<std::size_t>(at));
      }
      pieces.push_back(piece);
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.from != b.from ? a.from < b.from : a.buffer < b.buffer;
    });
    return timeline(graph_, std::move(steps), pieces);
  }

  // As it came, at its own addresses.
  AwayPlan written(std::vector<Step> steps) {
    write_steps(steps);
    Plan plan;
    plan.graph_sha256 = graph_.sha256;
    plan.align = graph_.align;
    plan.arena_bytes = from_.arena_bytes;
    plan.steps = std::move(steps);
    for (const Placement& p : from_.placements)
      if (!dropped(p)) plan.placements.push_back({p.buffer, begin_of(p), end_of(p), p.offset});
    std::stable_sort(plan.placements.begin(), plan.placements.end(), [](const Placement& a, const Placement& b) {
      return a.from != b.from ? a.from < b.from : a.buffer < b.buffer;
    });
    for (const ScratchPlacement& s : from_.scratch)
      plan.scratch.push_back({step_of_[static_cast<std::size_t>(s.step)], s.index, s.offset});
    return figures(std::move(plan));
  }

  AwayPlan figures(Plan plan) const {
    plan.away = sent_;
    AwayPlan result;
    for (const Step& step : plan.steps) {
      if (step.kind == Step::Kind::kRun) continue;
      const Buffer& buffer = graph_.buffer(step.buffer);
      if (step.kind == Step::Kind::kSwapOut)
        result.swapped_bytes += buffer.bytes;
      else if (buffer.resident)
        result.fetched_bytes += buffer.bytes;
    }
    result.step_ns = budget::predict(graph_, plan.steps, link_).step_ns;
    result.plan = std::move(plan);
    return result;
  }

  const Graph& graph_;
  const AwayGraph& away_;
  const std::vector<BufferId>& sent_;
  const Plan& from_;
  std::int64_t capacity_;
  budget::Link link_;
  std::vector<std::size_t> kept_;   // steps of the given plan that stay, by position
  std::vector<std::int32_t> slot_;  // per step of the given plan
  std::vector<Fetch> fetches_;
  std::vector<Store> stores_;
  std::vector<bool> needless_;                               // per step of the given plan: a copy of what the host has
  std::vector<std::int32_t> dropped_;                        // steps of the given plan: fetches that nobody uses
  std::map<std::int32_t, std::size_t> fetch_of_, store_of_;  // by step of the given plan
  std::vector<std::int64_t> live_, start_;
  std::int64_t least_ = 0;
  std::vector<std::int32_t> step_of_, free_, in_step_;
  std::int32_t steps_ = 0;
};

}  // namespace

AwayPlan spread_out(const Graph& graph, const AwayGraph& away, const std::vector<BufferId>& sent, const Plan& planned,
                    std::int64_t capacity, budget::Link link) {
  return Spreader(graph, away, sent, planned, capacity, link).run();
}

}  // namespace stowage
