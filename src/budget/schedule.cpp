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
    write_pieces();
    result_.step_ns = predict(*recipes_.graph, result_.timeline.steps, link_).step_ns;
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
      note_reuse(at);
      written_.push_back(Step::run(OpId(ledger_.op(at))));
      if (ledger_.repeat(at)) {
        ++result_.recomputed_ops;
        result_.recompute_ns = capped_sum(result_.recompute_ns, recipes_.cost[ledger_.op(at)]);
      }
    }
    free_.push_back(here());
    for (; next < copies_.size(); ++next) push_copy(step_of_copy, copies_[next]);  // in, for the end of the step
    step_.push_back(here());
    for (std::size_t i = 0; i < copies_.size(); ++i)
      written_[step_of_copy[i]].until = copies_[i].out ? free_[copies_[i].until] : step_[copies_[i].until];
  }

  void note_reuse(std::int32_t at) {
    if (ledger_.taken(at).empty()) return;
    const std::int64_t without = ledger_.live().at(at) - ledger_.added(at) + recipes_.added[ledger_.op(at)];
    for (const ReusePair& pair : ledger_.taken(at)) {
      const bool equal = recipes_.bytes[pair.read.index()] == recipes_.bytes[pair.created.index()];
      if (without > merging_.limit || (merging_.equal && equal)) over_[{pair.created.value, here()}] = pair.read.value;
    }
  }

  void push_copy(std::vector<std::size_t>& step_of_copy, const Copy& copy) {
    step_of_copy.push_back(written_.size());
    if (!copy.out) in_step_[{copy.buffer, copy.slot}] = here();
    Step step;
    step.kind = copy.out ? Step::Kind::kSwapOut : Step::Kind::kSwapIn;
    step.buffer = BufferId(copy.buffer);
    written_.push_back(step);
    if (copy.out) result_.swapped_bytes += recipes_.graph->buffers[copy.buffer].bytes;
  }

  [[nodiscard]] std::int32_t here() const { return static_cast<std::int32_t>(written_.size()); }

  void write_pieces() {
    std::vector<Piece> pieces;
    std::vector<Gap> gaps;
    for (std::int32_t b = 0; b < recipes_.buffers; ++b) {
      const auto& events = ledger_.events(b);
      ledger_.gaps(b, gaps);
      std::size_t g = 0;
      for (std::size_t i = 0; i < events.size(); ++i) {
        if (events[i].creates()) pieces.push_back(created(b, events[i].at));
        if (g < gaps.size() && gaps[g].from == events[i].at && gaps[g].swap >= 0) {
          pieces.back().to = free_[gaps[g].gone];
          pieces.push_back({BufferId(b), in_step_.at({b, gaps[g].back}), 0, 0, {}});
        } else {
          pieces.back().to = step_[events[i].at] + 1;
        }
        if (g < gaps.size() && gaps[g].from == events[i].at) {
          if (gaps[g].to == ledger_.size()) pieces.back().to = here();
          ++g;
        }
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.from < b.from; });
    result_.timeline = timeline(*recipes_.graph, std::move(written_), pieces);
  }

  [[nodiscard]] Piece created(std::int32_t buffer, std::int32_t at) const {
    const Op& op = recipes_.graph->ops[ledger_.op(at)];
    const auto place = std::find(op.creates.begin(), op.creates.end(), BufferId(buffer)) - op.creates.begin();
    const auto over = over_.find({buffer, step_[at]});
    return {BufferId(buffer), step_[at], 0, born_tick(op, static_cast<std::size_t>(place)),
            over == over_.end() ? BufferId() : BufferId(over->second)};
  }

  const Recipes& recipes_;
  Ledger ledger_;
  Link link_;
  Merging merging_;
  std::vector<Copy> copies_;
  std::vector<std::int32_t> step_;  // per position: the step of the op
  std::vector<std::int32_t> free_;  // per position: the first step of its slot at which copies out must be complete
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> in_step_;  // (buffer, slot)
  // (buffer, step that creates it): what it lies over
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> over_;
  std::vector<Step> written_;
  Schedule result_;
};

}  // namespace

Schedule schedule(const Recipes& recipes, const Sequence& sequence, Link link, Merging merging) {
  return Writer(recipes, sequence, link, merging).run();
}

}  // namespace stowage::budget
