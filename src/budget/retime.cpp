#include "budget/retime.h"

#include <algorithm>

#include "base/capped.h"

namespace stowage::budget {
namespace {

class Retimer {
 public:
  Retimer(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, Link link)
      : recipes_(recipes), sequence_(sequence), ledger_(recipes, sequence), capacity_(capacity), link_(link) {}

  void run() {
    std::vector<Gap> gaps;
    for (std::int32_t b = 0; b < recipes_.buffers; ++b) {
      ledger_.gaps(b, gaps);
      for (const Gap& gap : gaps)
        if (gap.swap >= 0) away_.push_back(gap);
    }
    come_back();
    leave();
  }

 private:
  [[nodiscard]] std::int64_t duration(const Gap& gap) const {
    return link_.duration(recipes_.graph->buffers[gap.buffer].bytes);
  }
  [[nodiscard]] bool room(std::int32_t at, const Gap& gap) const {
    return ledger_.live().at(at) + recipes_.bytes[gap.buffer] <= capacity_;
  }

  void come_back() {
    std::stable_sort(away_.begin(), away_.end(), [](const Gap& a, const Gap& b) { return a.to > b.to; });
    std::int64_t lane = ledger_.start(ledger_.size());
    for (Gap& gap : away_) {
      lane = capped_sum(std::min(lane, ledger_.start(gap.to)), -duration(gap));
      const std::int32_t first = std::max(gap.gone + 1, ledger_.at_time(lane + 1) - 1);
      while (gap.back > first && room(gap.back - 1, gap)) {
        --gap.back;
        ledger_.live().add(gap.back, gap.back + 1, recipes_.bytes[gap.buffer]);
      }
      sequence_.swaps[gap.swap].in_from = ledger_.node(gap.back);
    }
  }

  void leave() {
    std::stable_sort(away_.begin(), away_.end(), [](const Gap& a, const Gap& b) { return a.gone < b.gone; });
    std::int64_t lane = 0;
    for (Gap& gap : away_) {
      if (gap.host) continue;
      Swap& swap = sequence_.swaps[gap.swap];
      const std::int32_t issue = gap.made + 1;
      swap.out_at = ledger_.node(std::min(issue, ledger_.size() - 1));
      lane = capped_sum(std::max(lane, ledger_.start(issue)), duration(gap));
      const std::int32_t last = std::min(gap.back - 1, ledger_.at_time(lane));
      while (gap.gone < last && room(gap.gone, gap)) {
        ledger_.live().add(gap.gone, gap.gone + 1, recipes_.bytes[gap.buffer]);
        ++gap.gone;
      }
      swap.out_by = ledger_.node(gap.gone);
    }
  }

  const Recipes& recipes_;
  Sequence& sequence_;
  Ledger ledger_;
  std::int64_t capacity_;
  Link link_;
  std::vector<Gap> away_;
};

}  // namespace

void retime(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, Link link) {
  if (link.there() && !sequence.swaps.empty()) Retimer(recipes, sequence, capacity, link).run();
}

}  // namespace stowage::budget
