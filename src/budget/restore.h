// Having a content again: which ops run once more just before a position, so that a buffer holds a version there.
//
//   line     A ─ B ─ C ─ … ─ E(needs c)        c was dropped after its last forward use; at E:
//   a, b, c  a: dead since B                    c ← C needs b;  b is dead too: kept up to here if that fits, else b ← B needs a; …
//                                               The chain ends at what is live there, at what fits when kept, and at residents.
//
// The whole chain is one move with one price. A copy that is recomputed a little later anyway is made here instead (its
// later run goes away) when it fits in between. Contents with several versions are made again from their creation on.
// O(size of the chain).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "budget/ledger.h"

namespace stowage::budget {

struct Extension {  // a copy that lives longer: bytes on [from, to)
  std::int32_t buffer, from, to;
};

struct Move {
  std::int32_t at = 0;               // position before which `runs` go
  std::vector<std::int32_t> runs;    // ops
  std::vector<std::int32_t> remove;  // positions of runs that go away
  std::vector<Extension> extensions;
  std::vector<std::int32_t> buffers;  // what it relies on or changes,
  std::vector<char> changes;          // and which of these it changes: others may rely on the rest, too
  std::optional<Swap> swap;           // a swap instead of runs
  std::int32_t widens = -1;           // in the place of this one of Sequence::swaps
  std::int64_t cost = 0;              // ns
  std::int64_t overload = 0;          // bytes over the capacity while `runs` run, summed over them
};

class Restorer {
 public:
  Restorer(const Ledger& ledger, std::int64_t capacity, std::int32_t longest_chain = 200)
      : ledger_(ledger),
        recipes_(ledger.recipes()),
        capacity_(capacity),
        longest_(longest_chain),
        made_(recipes_.buffers, 0),
        last_need_(recipes_.buffers, -1),
        seen_(recipes_.buffers, 0) {}

  // The move after which the gap holds nothing: the buffer is made again before gap.to. None: it cannot be.
  std::optional<Move> drop(const Gap& gap);
  // Contents asked for so far, as a measure of work.
  [[nodiscard]] std::int64_t looked() const { return looked_; }

 private:
  bool want(std::int32_t buffer, std::int32_t version);
  void touch(std::int32_t buffer, bool changes) {
    move_.buffers.push_back(buffer);
    move_.changes.push_back(changes ? 1 : 0);
  }
  bool hoist(std::int32_t buffer, const Event& next);
  bool rerun(std::int32_t buffer, std::int32_t version);
  bool run(std::int32_t op, std::int32_t chain_buffer);
  [[nodiscard]] std::int64_t overload(const Gap& gap);
  bool fits(std::int32_t from, std::int32_t to, std::int64_t bytes) const;

  const Ledger& ledger_;
  const Recipes& recipes_;
  std::int64_t capacity_;
  std::int32_t longest_;
  std::vector<char> made_;               // per buffer, of overload(): a run has made it, and a later one needs it
  std::vector<std::int32_t> last_need_;  // per buffer, of overload(): the last run that needs it; -1: none
  std::vector<std::int32_t> seen_;       // per buffer: version promised by the move at hand; 0: none
  std::int64_t looked_ = 0, looked_before_ = 0;
  Move move_;
};

}  // namespace stowage::budget
