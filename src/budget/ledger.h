// The account of a sequence: who uses which buffer where, and the live bytes at every position.
//
//   position   0     1     2     3     4
//   b          create      read        read        gaps of b: (0, 2] and (2, 4]; live at 1, 2, 3, 4 on top of what op 0 adds
//
// Bytes at a position are those live before the op there, plus what the op adds (creations that take nothing over,
// scratch) at its heaviest tick. Built in O(line + uses); runs can be taken out in place, each in O(buffers it touches
// · log n) and a shift of their uses.
#pragma once

#include <cstdint>
#include <vector>

#include "budget/range_max.h"
#include "budget/sequence.h"

namespace stowage::budget {

struct Event {
  std::int32_t at = 0;      // position
  std::int32_t before = 0;  // version needed; 0: creates
  std::int32_t after = 0;   // version left
  [[nodiscard]] bool creates() const { return before == 0; }
};

// A buffer between two uses of one copy: on the device in (from, gone) and [back, to], all of it when it is not
// swapped.
struct Gap {
  std::int32_t buffer = 0;
  std::int32_t from = 0, to = 0;  // positions; `to` is the number of positions when the end of the step needs it
  std::int32_t version = 0;
  std::int32_t made = 0;   // position of the event that left this version in this copy
  std::int32_t swap = -1;  // in Sequence::swaps
  std::int32_t gone = -1, back = -1;
  bool host = false;  // the host holds this content before the gap
};

class Ledger {
 public:
  Ledger(const Recipes& recipes, const Sequence& sequence);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(line_.size()); }
  // Of size(): kEnd, and the other way round.
  [[nodiscard]] Node node(std::int32_t position) const { return position == size() ? kEnd : line_[position]; }
  [[nodiscard]] std::int32_t op(std::int32_t position) const { return sequence_->op[line_[position]]; }
  [[nodiscard]] bool repeat(std::int32_t position) const { return sequence_->repeat[line_[position]] != 0; }
  [[nodiscard]] std::int32_t position(Node node) const { return node == kEnd ? size() : position_[node]; }
  [[nodiscard]] std::int32_t first_run(std::int32_t op) const { return first_run_[op]; }
  [[nodiscard]] const std::vector<Event>& events(std::int32_t buffer) const { return events_[buffer]; }
  [[nodiscard]] const Recipes& recipes() const { return *recipes_; }
  [[nodiscard]] const Sequence& sequence() const { return *sequence_; }

  // Bytes that the op at a position adds, with the in-place reuse that it allows: the best of the pairs whose r ends there
  // (reuse_table.h).
  [[nodiscard]] std::int64_t added(std::int32_t position) const { return added_[position]; }
  [[nodiscard]] const std::vector<ReusePair>& taken(std::int32_t position) const { return best_at(position).pairs; }
  // By how much less it would add if the copy of `buffer` that it uses ended there, or more if it did not.
  [[nodiscard]] std::int64_t gain(std::int32_t position, std::int32_t buffer) const;

  // The gaps of a buffer, in order.
  void gaps(std::int32_t buffer, std::vector<Gap>& out) const;

  [[nodiscard]] RangeMax& live() { return live_; }
  [[nodiscard]] const RangeMax& live() const { return live_; }
  // When the op at a position starts if no copy is late; start(size()): the end of the step.
  [[nodiscard]] std::int64_t start(std::int32_t position) const { return start_[position]; }
  // The first position that starts at `time` or later.
  [[nodiscard]] std::int32_t at_time(std::int64_t time) const;

  // Takes runs out (their positions stay, empty), drops a swap. undo() takes the last change back.
  void take_out(const std::vector<std::int32_t>& positions);
  void drop_swap(std::int32_t swap);
  void undo();
  [[nodiscard]] bool out(std::int32_t position) const { return out_[position] != 0; }
  [[nodiscard]] bool dropped(std::int32_t swap) const { return dropped_[swap] != 0; }
  // The sequence after the changes.
  [[nodiscard]] Sequence result() const;

 private:
  // Adds or subtracts the bytes of the gaps after events [first, last) of the buffer; all of its gaps.
  void count(std::int32_t buffer, std::size_t first, std::size_t last, std::int64_t sign);
  void count(std::int32_t buffer, std::int64_t sign) { count(buffer, 0, events_[buffer].size(), sign); }
  // The gap after event `i`, without `host` and `made`. False: nothing is live there.
  bool gap_after(std::int32_t buffer, std::size_t i, Gap& gap) const;
  void collect_events();
  // The copy of `buffer` that is used at a position has its last use there.
  [[nodiscard]] bool ends(std::int32_t buffer, std::int32_t position) const;
  [[nodiscard]] const ReuseTable::Best& best_at(std::int32_t position, std::int32_t flipped = -1) const;
  // Accounts anew for what the op adds: at a position, at some uses of a buffer.
  void refresh(std::int32_t position);
  void refresh_uses(std::int32_t buffer, std::size_t first, std::size_t last);
  std::vector<std::int32_t> touched(const std::vector<std::int32_t>& positions) const;

  const Recipes* recipes_;
  const Sequence* sequence_;
  std::vector<Node> line_;
  std::vector<std::int32_t> position_;   // per node; -1: not in the line
  std::vector<std::int32_t> first_run_;  // per op
  std::vector<std::vector<Event>> events_;
  std::vector<std::vector<std::int32_t>> swaps_of_;
  std::vector<std::int64_t> start_, added_;
  std::vector<char> out_, dropped_;
  RangeMax live_;
  mutable std::vector<Gap> scratch_;

  struct Removed {
    std::int32_t buffer;
    std::size_t first, last;    // its events [first, last) were replaced by
    std::vector<Event> events;  // fewer; these are what they were
  };
  struct Change {
    std::vector<std::int32_t> positions;
    std::int32_t swap = -1;
    std::vector<Removed> removed;
  } last_;
};

}  // namespace stowage::budget
