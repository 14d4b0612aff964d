// Stowage's own policy: let go of what costs least to have back for the bytes and the time that it frees, and know when
// it is used next.
//
// Statement: each candidate v has a price, the time that letting it go will cost, and a relief, its bytes times the
// time until its next use. Pick the least price / relief, in the cheaper way:
//
//   drop                      its recipe along ancestors that are gone (value_table.h)
//   swap, clean host copy     what is left of the copy in when it is fetched in time: kLaneWorth x copy
//   swap, none yet            the same, and the copy out that has to be waited for now
//
// A copy that nobody waits for still costs a little, kLaneWorth of its time, so that of two free ones the cheaper to
// have is let go. (A worth that followed how busy the lanes were made matters worse: what the lane was too busy for was
// recomputed, late.) The next use is what earlier iterations showed (access_history.h); where they showed nothing,
// staleness stands for the time until then, as in DTR and DELTA. So it is Belady's rule where costs are equal, DTR's
// where nothing repeats.
//
//   now             the next uses of what is resident ─▶          copies go out ahead: while values are being let go, those that would
//   ├─ c ── a ──────────── e ────── d ──────── b                  go next (b, then d) are copied as soon as the lane is free, until
//                                   ▒          ▒ on the host      that reserve is what the program is over the limit, or half the
//                                                                 limit: when room is short they go at once.
//   out lane  ▒▒b▒▒▒d▒▒▒                                          They come back by deadlines: when the time until the next use falls
//   in lane                     ▒▒d▒▒b                            to the lane's queue and the copy, or earlier, into spare room.
//
// Candidates are kept in classes of price a byte, each in order of next use, so pick looks at the first few of each
// class: O(classes (log n + ancestors gone)); notes O(log n).
//
// Belady, IBM Systems Journal 5 (1966); Kirisame et al. (DTR), ICLR 2021; Peng et al. (Capuchin), ASPLOS 2020. Known
// weakness: deadlines are looked at one by one, so a burst of uses (an optimizer's) waits for the lane.
#pragma once

#include <functional>
#include <vector>

#include "eager/next_use_heap.h"
#include "eager/policy.h"
#include "eager/staleness_index.h"

namespace stowage::eager {

class CostAware : public Policy {
 public:
  CostAware(ValueTable& table, AccessHistory& history) : table_(table), history_(history), by_age_(table) {}

  void entered(ValueId id) override {
    if (awake_) file(id);
  }
  void left(ValueId id) override;
  void accessed(ValueId id) override;
  void recipe_changed(ValueId id) override;
  void released(ValueId id, How how) override;
  void restored(ValueId id) override { away_.erase(id); }
  void died(ValueId id) override { away_.erase(id); }
  void forgotten(ValueId id) override { away_.erase(id); }
  std::optional<ValueId> pick(bool last_resort) override;
  How choose(ValueId id) override { return price(id, gap_ns(id)).how; }
  Advice advise(std::int64_t room_bytes) override;

  struct Price {
    double ns = 0;
    How how = How::kSwap;
  };
  // `ahead`: the copy out is no wait, it is made beforehand.
  [[nodiscard]] Price price(ValueId id, std::int64_t gap_ns, bool ahead = false) const;
  // Time until the next use, foretold or guessed.
  [[nodiscard]] std::int64_t gap_ns(ValueId id) const;
  // price / relief; what pick() makes least. For tests too.
  [[nodiscard]] double score(ValueId id, bool ahead = false) const;

 private:
  enum class Wanted : std::uint8_t { kVictim, kLastResort, kToCopy };
  static constexpr int kLooksAClass = 3;
  static constexpr std::int64_t kReplayNs = 3'000;  // of the call around a recomputed op
  static constexpr std::int64_t kHorizonOps = 256;  // how far room is looked ahead for

  void wake();
  void file(ValueId id);
  std::optional<ValueId> find(Wanted wanted);
  [[nodiscard]] bool fits(ValueId id, Wanted wanted) const;
  [[nodiscard]] std::size_t price_class(ValueId id) const;
  void give_up_expired();
  Advice copy_out(std::int64_t room_bytes);
  bool may_fetch_early(ValueId id, std::int64_t tick, std::int64_t room_bytes);
  Advice fetch(std::int64_t room_bytes);
  [[nodiscard]] std::int64_t growth_bytes(std::int64_t until_tick) const;

  ValueTable& table_;
  AccessHistory& history_;
  StalenessIndex by_age_;                  // candidates whose next use is not known
  NextUseHeap<std::greater<>> furthest_;   // those whose is, by class of price
  NextUseHeap<std::less<>> soonest_;       // the same: what was expected and did not come is found here
  NextUseHeap<std::less<>> away_;          // swapped, next use known
  IdVector<ValueId, bool> fetched_early_;  // since its last use
  bool letting_go_ = false;                // something was, since nothing was found that is worth a copy
  bool awake_ = false;                     // a victim has been asked for: until then candidates are in no order
};

}  // namespace stowage::eager
