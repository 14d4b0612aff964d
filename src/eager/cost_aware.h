// Stowage's own policy: let go of what costs least to have back for the bytes and the time that it frees, and know when it is used next.
//
// Statement: each candidate v has a price, the time that letting it go will cost, and a relief, its bytes times the time until its next
// use. Pick the least price / relief, in the cheaper way:
//
//   drop                      its recipe along ancestors that are gone (value_table.h)
//   swap, clean host copy     what is left of the copy in when it is fetched in time: strain x copy
//   swap, none yet            the same, and the copy out that has to be waited for now
//
// Strain, between kLeastStrain and kMostStrain, is what a nanosecond of the lanes is worth: how busy they were lately and how much was
// waited for them. The next use is what earlier iterations showed (access_history.h); where they showed nothing, staleness stands for the
// time until then, as in DTR and DELTA. So it is Belady's rule where costs are equal, DTR's where nothing repeats.
//
//   unlimited bytes       ╱▔▔╲          copies go out ahead: the next peak of an iteration is known, so values that are used only after
//   limit ┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈╱┈┈┈┈╲┈┈┈      it are copied as soon as they are made, until copies cover the excess; at the peak they are
//                       ╱ peak ╲        clean, and go at once. They come back by deadlines on the lane: when the time until the next
//   out lane  ▒▒a▒▒▒b▒▒▒               use falls to the lane's queue and the copy, or earlier when nothing is going to need the room.
//   in lane                 ▒▒b▒▒a
//
// Besides, while values are being let go, the one that would go next is copied out as soon as the lane is free.
//
// Sizes may change from iteration to iteration: what this one holds over its floor, against what the matched one held there, scales the
// matched one's peak.
//
// Candidates are kept in classes of price a byte, each in order of next use, so pick looks at the first few of each class:
// O(classes (log n + ancestors gone)); notes O(log n); once a period O(ops of the period) for the next peak.
//
// Belady, IBM Systems Journal 5 (1966); Kirisame et al. (DTR), ICLR 2021; Peng et al. (Capuchin), ASPLOS 2020. Known weakness: only one
// peak ahead is prepared for.
#pragma once

#include <deque>
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
  static constexpr double kLeastStrain = 0.2, kMostStrain = 2;
  static constexpr int kLooksAClass = 3;
  static constexpr std::int64_t kReplayNs = 3'000;  // of the call around a recomputed op
  static constexpr std::int64_t kHorizonOps = 256;  // how far room is looked ahead for

  void wake();
  void file(ValueId id);
  std::optional<ValueId> find(bool last_resort, bool ahead);
  [[nodiscard]] std::size_t price_class(ValueId id) const;
  void give_up_expired();
  void look_ahead();
  [[nodiscard]] double growth_scale(std::int64_t floor_bytes) const;
  void count_covered();
  void measure_strain();
  [[nodiscard]] bool covers_peak(ValueId id) const { return history_.next_tick(id) > peak_tick_; }
  [[nodiscard]] bool worth_a_copy(ValueId id) const;
  Advice copy_out();
  Advice copy_next_victim(std::int64_t room_bytes);
  bool may_fetch_early(ValueId id, std::int64_t tick, std::int64_t room_bytes);
  Advice fetch(std::int64_t room_bytes);
  [[nodiscard]] std::int64_t growth_bytes(std::int64_t until_tick) const;

  ValueTable& table_;
  AccessHistory& history_;
  StalenessIndex by_age_;                 // candidates whose next use is not known
  NextUseHeap<std::greater<>> furthest_;  // those whose is, by class of price
  NextUseHeap<std::less<>> soonest_;      // the same: what was expected and did not come is found here
  NextUseHeap<std::less<>> away_;         // swapped, next use known
  std::vector<bool> fetched_early_;       // by row, since its last use
  std::deque<ValueId> to_copy_;           // may be worth a copy out, as accessed
  std::int64_t released_tick_ = -1;       // of the last value that went
  bool letting_go_ = false;               // something was, since the next victim was last seen to be clean or cheap to drop
  bool awake_ = false;                    // a victim has been asked for: until then candidates are in no order
  double strain_ = kLeastStrain;
  std::int64_t strain_from_ns_ = 0, busy_from_ns_ = 0, waited_from_ns_ = 0;
  std::int64_t peak_tick_ = -1, peak_excess_bytes_ = 0, covered_bytes_ = 0, counted_tick_ = -1;
};

}  // namespace stowage::eager
