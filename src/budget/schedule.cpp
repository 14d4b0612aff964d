#include "budget/schedule.h"

#include <algorithm>
#include <map>

#include "base/capped.h"
#include "budget/ledger.h"
#include "budget/timing.h"

namespace stowage::budget {
namespace {

struct Copy {
  std::int32_t slot;  // position of the op before which it is issued
  bool out;
  std::int32_t buffer;
  std::int32_t until;  // position
};

class Writer {
 public:
  Writer(const Recipes& recipes, const Sequence& sequence, Link link, Merging merging)
      : recipes_(recipes), ledger_(recipes, sequence), link_(link), merging_(merging) {}

  Schedule run() {
    collect();
    write_steps();
    write_placements();
    result_.step_ns = predict(*recipes_.graph, result_.steps, link_).step_ns;
    return std::move(result_);
  }

 private:
  void collect() {
    std::vector<Gap> gaps;
    for (std::int32_t b = 0; b < recipes_.buffers; ++b) {
      ledger_.gaps(b, gaps);
      for (const Gap& gap : gaps) {
        if (gap.swap < 0) continue;
        const Swap& swap = ledger_.sequence().swaps[gap.swap];
        if (!gap.host) {
          const std::int32_t wish = swap.out_at >= 0 ? ledger_.position(swap.out_at) : gap.from + 1;
          copies_.push_back({std::clamp(wish, gap.made + 1, gap.gone), true, b, gap.gone});
        }
        copies_.push_back({gap.back, false, b, gap.to});
      }
    }
    std::stable_sort(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) {
      return a.slot != b.slot ? a.slot < b.slot : a.out != b.out ? a.out : a.until < b.until;
    });
  }

  void write_steps() {
    std::vector<std::size_t> step_of_copy;
    std::size_t next = 0;
    for (std::int32_t at = 0; at < ledger_.size(); ++at) {
      for (; next < copies_.size() && copies_[next].slot == at && copies_[next].out; ++next)
        push_copy(step_of_copy, copies_[next]);
      free_.push_back(here());
      for (; next < copies_.size() && copies_[next].slot == at; ++next) push_copy(step_of_copy, copies_[next]);
      step_.push_back(here());
      take_over(at);
      result_.steps.push_back(Step::run(OpId(ledger_.op(at))));
      if (ledger_.repeat(at)) {
        ++result_.recomputed_ops;
        result_.recompute_ns = capped_sum(result_.recompute_ns, recipes_.cost[ledger_.op(at)]);
      }
    }
    free_.push_back(here());
    for (; next < copies_.size(); ++next) push_copy(step_of_copy, copies_[next]);  // in, for the end of the step
    step_.push_back(here());
    for (std::size_t i = 0; i < copies_.size(); ++i)
      result_.steps[step_of_copy[i]].until = copies_[i].out ? free_[copies_[i].until] : step_[copies_[i].until];
  }

  void take_over(std::int32_t at) {
    if (ledger_.taken(at).empty()) return;
    const std::int64_t without = ledger_.live().at(at) - ledger_.added(at) + recipes_.added[ledger_.op(at)];
    for (const Takeover& pair : ledger_.taken(at)) {
      const bool equal = recipes_.bytes[pair.read.index()] == recipes_.bytes[pair.created.index()];
      if (without > merging_.limit || (merging_.equal && equal)) over_[{pair.created.value, here()}] = pair.read.value;
    }
  }

  void push_copy(std::vector<std::size_t>& step_of_copy, const Copy& copy) {
    step_of_copy.push_back(result_.steps.size());
    if (!copy.out) in_step_[{copy.buffer, copy.slot}] = here();
    Step step;
    step.kind = copy.out ? Step::Kind::kSwapOut : Step::Kind::kSwapIn;
    step.buffer = BufferId(copy.buffer);
    result_.steps.push_back(step);
    if (copy.out) result_.swapped_bytes += recipes_.graph->buffers[copy.buffer].bytes;
  }

  [[nodiscard]] std::int32_t here() const { return static_cast<std::int32_t>(result_.steps.size()); }

  struct Piece {
    Placement placement;
    std::int32_t tick;  // born within its first step
  };

  void write_placements() {
    std::vector<Piece> pieces;
    std::vector<Gap> gaps;
    for (std::int32_t b = 0; b < recipes_.buffers; ++b) {
      const auto& events = ledger_.events(b);
      ledger_.gaps(b, gaps);
      std::size_t g = 0;
      for (std::size_t i = 0; i < events.size(); ++i) {
        if (events[i].creates()) pieces.push_back({{BufferId(b), step_[events[i].at], 0, 0}, tick(events[i].at, b)});
        if (g < gaps.size() && gaps[g].from == events[i].at && gaps[g].swap >= 0) {
          pieces.back().placement.to = free_[gaps[g].gone];
          pieces.push_back({{BufferId(b), in_step_.at({b, gaps[g].back}), 0, 0}, 0});
        } else {
          pieces.back().placement.to = step_[events[i].at] + 1;
        }
        if (g < gaps.size() && gaps[g].from == events[i].at) {
          if (gaps[g].to == ledger_.size()) pieces.back().placement.to = here();
          ++g;
        }
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.placement.from < b.placement.from; });
    write_items(pieces);
  }

  std::int32_t tick(std::int32_t at, std::int32_t buffer) const {
    const Op& op = recipes_.graph->ops[ledger_.op(at)];
    const auto place = std::find(op.creates.begin(), op.creates.end(), BufferId(buffer)) - op.creates.begin();
    return born_tick(op, static_cast<std::size_t>(place));
  }

  void write_items(const std::vector<Piece>& pieces) {
    const Graph& graph = *recipes_.graph;
    std::vector<std::int64_t> start{0};
    for (const Step& step : result_.steps)
      start.push_back(start.back() + (step.kind == Step::Kind::kRun ? graph.op(step.op).ticks : 1));
    std::vector<std::int32_t> latest(graph.buffers.size(), -1);  // item of the latest copy
    for (const Piece& piece : pieces) {
      const Placement& p = piece.placement;
      const std::int64_t bytes = recipes_.bytes[p.buffer.index()];
      std::int32_t& item = latest[p.buffer.index()];
      const auto over = over_.find({p.buffer.value, p.from});
      if (over == over_.end()) {
        item = add({start[p.from] + piece.tick, start[p.to], bytes});
      } else {
        item = latest[over->second];
        result_.items[item].upper = start[p.to];
        result_.items[item].bytes = std::max(result_.items[item].bytes, bytes);
      }
      result_.placements.push_back(p);
      result_.item_of.push_back(item);
    }
    for (std::size_t s = 0; s < result_.steps.size(); ++s) {
      if (result_.steps[s].kind != Step::Kind::kRun) continue;
      const Op& op = graph.op(result_.steps[s].op);
      for (std::size_t i = 0; i < op.scratch.size(); ++i) {
        result_.scratch.push_back({static_cast<std::int32_t>(s), static_cast<std::int32_t>(i), 0});
        result_.item_of.push_back(
            add({start[s] + op.scratch[i].from, start[s] + op.scratch[i].to, graph.padded(op.scratch[i].bytes)}));
      }
    }
  }

  std::int32_t add(const LayoutItem& item) {
    result_.items.push_back(item);
    return static_cast<std::int32_t>(result_.items.size()) - 1;
  }

  const Recipes& recipes_;
  Ledger ledger_;
  Link link_;
  Merging merging_;
  std::vector<Copy> copies_;
  std::vector<std::int32_t> step_;  // per position: the step of the op
  std::vector<std::int32_t> free_;  // per position: the first step of its slot at which copies out must be complete
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> in_step_;  // (buffer, slot)
  // (buffer, step that creates it): what it takes over
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> over_;
  Schedule result_;
};

}  // namespace

Schedule schedule(const Recipes& recipes, const Sequence& sequence, Link link, Merging merging) {
  return Writer(recipes, sequence, link, merging).run();
}

}  // namespace stowage::budget
