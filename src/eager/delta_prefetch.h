// DELTA's prefetch: swapped values come back ahead of use, in the order of their expected use, a few at a time.
//
//   expected use    t=40 b   t=52 d   t=57 a │ not known: c, e (last released first)
//   in lane         ▒▒b▒▒▒▒▒▒d▒▒▒▒▒▒a▒▒▒  …        at most 5 in flight, none that would pass the limit
//
// Whenever there is room, the next one in order is fetched. The expected use is what earlier iterations showed
// (access_history.h); what they did not show is taken last in, first out, since backward uses what forward made in the
// reverse order.
//
// O(log n) a note. Tang et al., arXiv 2203.15980 (five at once; in their journal version, ACM TACO 21 (2024),
// "bidirectional"). Differs: the published code keeps a first-in-first-out queue and never starts it; fetching in that
// order brings what backward needs last.
#pragma once

#include <functional>

#include "eager/next_use_heap.h"
#include "eager/policy.h"

namespace stowage::eager {

class DeltaPrefetch : public Prefetch {
 public:
  DeltaPrefetch(ValueTable& table, AccessHistory& history) : table_(table), history_(history) {}

  void swapped(ValueId id) override {
    const std::int64_t next = history_.next_tick(id);
    heap_.put(id, next >= 0 ? next : kUnknownFrom - table_.tick());
  }
  void back(ValueId id) override { heap_.erase(id); }

  std::optional<ValueId> next(std::int64_t room_bytes) override {
    while (const auto* first = heap_.top()) {
      const ValueId id = first->id;
      if (first->key < kUnknownFrom / 2 && first->key <= table_.tick()) {  // it was expected, and did not come
        heap_.put(id, kUnknownFrom - table_.tick());
        continue;
      }
      if (table_[id].bytes > room_bytes) return std::nullopt;
      return id;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::int64_t kUnknownFrom = std::int64_t{1} << 60;

  ValueTable& table_;
  AccessHistory& history_;
  NextUseHeap<std::less<>> heap_;
};

}  // namespace stowage::eager
