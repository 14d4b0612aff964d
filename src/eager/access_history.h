// When will a value be used next? Training repeats itself: the order of accesses of earlier iterations answers.
//
// Statement: ops come one by one, each with a signature and the values that it reads and makes. For the value just
// accessed as operand i of an op, foretell the tick and the compute time of its next access, or say that nothing is
// known.
//
//   tape      ··· A  B  C  D  E │ A  B  C  D  E │ A  B           │: not marked by anybody; iterations are found, not announced
//   operands      w─────────w───┼─w──────────w··   links: from an access of a value to its next one
//                 match ──────────▶ here ▲       n: now, at B; the same op stood at m, and its operand's link led 3 ops on:
//                                  m           n expect the next use at n + 3
//
// While ops go on as they did after m, m follows (one comparison). When one differs (another length, depth, branch), m
// is looked up anew: the place where the last kLong, else kShort, signatures were seen last. Only operators count, not
// sizes, so a step of another length still matches. Nothing found: nothing foretold, and the policies fall back to
// staleness.
//
// O(operands) an op; memory: two entries an operand and op, at most kMostOps ops.
//
// The idea is Capuchin's (Peng et al., ASPLOS 2020: record the accesses of one iteration, then act by them) and
// Belady's (1966: who knows the next uses, evicts the furthest). Differs from Capuchin: no iteration needs to be
// announced or to be equal to the recorded one; each op that matches is foreseen, and the record is renewed all the
// time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stowage/value_table.h"

namespace stowage::eager {

class AccessHistory : public Listener {
 public:
  static constexpr std::int64_t kUnknown = -1;

  explicit AccessHistory(ValueTable& table);

  void op_begins(std::uint64_t signature, std::span<const ValueId> reads);
  void op_ended(std::span<const ValueId> made);
  void forgotten(ValueId id) override;

  // Of the value's next use, as foretold at its last access; kUnknown too when that tick has passed without one.
  [[nodiscard]] std::int64_t next_tick(ValueId id) const {
    if (id.index() >= expected_.size()) return kUnknown;
    const Expected& e = expected_[id];
    return e.tick > table_.tick() ? e.tick : kUnknown;
  }
  [[nodiscard]] std::int64_t next_ns(ValueId id) const { return expected_[id].ns; }  // where next_tick is known

  [[nodiscard]] bool foresees() const { return match_ >= 0; }
  // Ops since the matched one: the length of an iteration, once there is one.
  [[nodiscard]] std::int64_t period() const { return match_ < 0 ? 0 : now_ - match_; }
  // What was resident without a limit, `ahead` ops after the matched one; 0 beyond what is known.
  [[nodiscard]] std::int64_t unlimited_bytes(std::int64_t ahead) const;

 private:
  static constexpr std::int64_t kMostOps = 1 << 18;
  static constexpr int kLong = 32, kShort = 6;

  struct Op {
    std::uint64_t signature = 0;
    std::int64_t first_access = 0;  // absolute
    std::int64_t begin_ns = 0;      // compute clock
    std::int64_t unlimited_bytes = 0;
  };
  struct Access {
    std::int64_t next_op = kUnknown;  // absolute position of the op that accesses the value next
  };
  struct Expected {
    std::int64_t tick = kUnknown, ns = 0;
    std::int64_t access = kUnknown;  // the last one, absolute
  };
  // The last place of a context, by its hash; newer ones push out older ones.
  struct Places {
    explicit Places(int length_) : length(length_), at(1 << 14, {0, kUnknown}) {}
    int length;
    std::uint64_t hash = 0, power = 1;
    std::vector<std::pair<std::uint64_t, std::int64_t>> at;
  };

  [[nodiscard]] const Op& op(std::int64_t position) const {
    return ops_[static_cast<std::size_t>(position - first_op_)];
  }
  [[nodiscard]] bool known(std::int64_t position) const { return position >= first_op_ && position <= now_; }
  void follow(std::uint64_t signature);
  void roll(Places& places, std::uint64_t signature);
  [[nodiscard]] std::int64_t look_up(const Places& places, std::uint64_t signature) const;
  void access(ValueId id, std::int64_t operand);
  void shorten();

  ValueTable& table_;
  std::vector<Op> ops_;
  std::vector<Access> accesses_;
  std::int64_t first_op_ = 0, first_access_ = 0;  // absolute positions of what is kept
  std::int64_t now_ = -1;                         // the running op
  std::int64_t match_ = -1;                       // the one like it, earlier
  std::int64_t operands_ = 0;                     // of the running op, so far
  IdVector<ValueId, Expected> expected_;
  Places long_{kLong}, short_{kShort};
};

}  // namespace stowage::eager
