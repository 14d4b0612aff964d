#include "budget/trim.h"

#include <algorithm>
#include <limits>

#include "base/capped.h"

namespace stowage::budget {
namespace {

class Trimmer {
 public:
  Trimmer(const Recipes& recipes, const Sequence& sequence, std::int64_t capacity)
      : recipes_(recipes),
        sequence_(sequence),
        ledger_(recipes, sequence),
        capacity_(std::max(capacity, ledger_.live().max())) {}

  bool run(std::int64_t& work) {
    bool changed = false;
    for (bool again = true; again && work > 0;) {
      again = pass(work);
      changed |= again;
    }
    for (std::size_t s = sequence_.swaps.size(); s-- > 0;) changed |= unswap(static_cast<std::int32_t>(s));
    return changed;
  }
  void undo(std::int32_t from, std::int32_t to) {
    capacity_ = std::numeric_limits<std::int64_t>::max();
    for (std::int32_t at = to - 1; at >= from; --at)
      if (ledger_.repeat(at) && !ledger_.out(at)) remove(at);
    for (std::size_t s = 0; s < sequence_.swaps.size(); ++s) {
      const std::int32_t back = std::min(ledger_.position(sequence_.swaps[s].in_from), ledger_.size() - 1);
      if (from <= back && back < to) unswap(static_cast<std::int32_t>(s));
    }
  }
  [[nodiscard]] Sequence result() const { return ledger_.result(); }

 private:
  bool pass(std::int64_t& work) {
    std::vector<std::int32_t> repeats;
    for (std::int32_t at = 0; at < ledger_.size(); ++at)
      if (ledger_.repeat(at) && !ledger_.out(at)) repeats.push_back(at);
    std::vector<double> price(static_cast<std::size_t>(ledger_.size()), 0);
    for (const std::int32_t at : repeats) price[at] = price_per_byte(ledger_.op(at));
    std::stable_sort(repeats.begin(), repeats.end(),
                     [&](std::int32_t a, std::int32_t b) { return price[a] > price[b]; });
    bool changed = false;
    for (const std::int32_t at : repeats) {
      work -= 3000;
      if (!ledger_.out(at)) changed |= remove(at);
    }
    return changed;
  }

  // Of all that runs to have its results, over their bytes.
  [[nodiscard]] double price_per_byte(std::int32_t op) const {
    std::int64_t cost = recipes_.creates[op].empty() ? 0 : recipes_.cost[op], bytes = 1;
    for (const std::int32_t b : recipes_.creates[op]) {
      bytes += recipes_.bytes[b];
      for (std::size_t v = 1; v < recipes_.makers[b].size(); ++v)
        cost = capped_sum(cost, recipes_.cost[recipes_.makers[b][v]]);
    }
    return static_cast<double>(cost) / static_cast<double>(bytes);
  }

  // The run at `at`, together with the repeated in-place runs that follow it on the same copy.
  bool remove(std::int32_t at) {
    std::vector<std::int32_t> chain{at};
    for (const std::int32_t b : recipes_.creates[ledger_.op(at)])
      if (!without(b, chain)) return false;
    if (recipes_.creates[ledger_.op(at)].empty()) return false;  // goes with the creation of its buffer
    if (hopeless(chain)) return false;
    ledger_.take_out(chain);
    if (ledger_.live().max() <= capacity_) return true;
    ledger_.undo();
    return false;
  }

  // No room between the use before and the run, even if all that the runs read went away.
  bool hopeless(const std::vector<std::int32_t>& chain) const {
    std::int64_t freed = 0;
    for (const std::int32_t at : chain)
      for (const Need& need : recipes_.needs[ledger_.op(at)]) freed += recipes_.bytes[need.buffer];
    for (const std::int32_t b : recipes_.creates[ledger_.op(chain[0])]) {
      const std::vector<Event>& events = ledger_.events(b);
      const auto here = std::lower_bound(events.begin(), events.end(), chain[0],
                                         [](const Event& e, std::int32_t at) { return e.at < at; });
      const auto next = std::find_if(here + 1, events.end(), [&](const Event& e) {
        return std::find(chain.begin(), chain.end(), e.at) == chain.end();
      });
      const bool used = next != events.end() ? !next->creates() : recipes_.returned[b] != 0;
      if (used && ledger_.live().max((here - 1)->at + 1, chain[0]) + recipes_.bytes[b] - freed > capacity_) return true;
    }
    return false;
  }

  // Can all that follows in the copy of `buffer` created at chain[0] do with the copy before? Adds the writers that go
  // too.
  bool without(std::int32_t buffer, std::vector<std::int32_t>& chain) const {
    const std::vector<Event>& events = ledger_.events(buffer);
    const auto here = std::lower_bound(events.begin(), events.end(), chain[0],
                                       [](const Event& e, std::int32_t at) { return e.at < at; });
    if (here == events.begin()) return false;
    auto next = here + 1;
    std::int32_t version = here->after;
    while (next != events.end() && !next->creates() && next->before != next->after && ledger_.repeat(next->at)) {
      chain.push_back(next->at);
      version = next->after;
      ++next;
    }
    const bool used = next != events.end() ? !next->creates() : recipes_.returned[buffer] != 0;
    return !used || (here - 1)->after == version;
  }

  bool unswap(std::int32_t swap) {
    ledger_.drop_swap(swap);
    if (ledger_.live().max() <= capacity_) return true;
    ledger_.undo();
    return false;
  }

  const Recipes& recipes_;
  const Sequence& sequence_;
  Ledger ledger_;
  std::int64_t capacity_;
};

}  // namespace

bool trim(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, std::int64_t& work) {
  Trimmer trimmer(recipes, sequence, capacity);
  if (!trimmer.run(work)) return false;
  sequence = trimmer.result();
  return true;
}

void undo(const Recipes& recipes, Sequence& sequence, std::int32_t from, std::int32_t to) {
  Trimmer trimmer(recipes, sequence, 0);
  trimmer.undo(from, to);
  sequence = trimmer.result();
}

}  // namespace stowage::budget
