// The ops of one loss head: all that look at a product's logits, or at what is made of them in their size, and what each
// does with rows.
//
//   rows as first dimension     row r of the result follows from row r of its operands and from what all rows share
//   sums over rows              a product with the rows in its middle, a sum of columns or of all, nll_loss
//   anything else               the head is refused: it is not known to work row by row
//
// An op that spreads something small over rows and columns (an elementwise op of a row and a column) is a member, too,
// where a member reads what it makes: the search begins anew with each that it meets. O(ops of the tape) for each such op.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/replay/tiles.h"

namespace stowage::runtime {

inline constexpr std::int64_t kFewTiles = 4;  // a head of fewer rows is not tiled

struct HeadMembers {
  std::vector<TileMember> members;                     // in program order
  std::map<BlockId, std::vector<std::size_t>> makers;  // of what has rows: the members that make or change it
  std::map<BlockId, TileOutput> results;
  std::vector<bool> big;  // by block: of the logits' size, made of them
  std::int64_t rows = 0;  // of the logits
};

// Both halves of the work on a head read the tape, and keep the first reason why the head cannot be tiled.
class HeadWork {
 public:
  explicit HeadWork(const Tape& tape) : tape_(tape) {}
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

 protected:
  bool refuse(const std::string& why) {
    if (refusal_.empty()) refusal_ = why;
    return false;
  }
  bool refuse(const TapeOp& op, const std::string& why) { return refuse(name_with_line(tape_, op) + " " + why); }
  [[nodiscard]] const Slot& slot(SlotId id) const { return tape_.slots[id.index()]; }

  const Tape& tape_;
  std::string refusal_;
};

// Of the logits that `product` makes. None where the head cannot be tiled: `refusal` says why.
std::optional<HeadMembers> find_members(const Tape& tape, TapeOpId product, std::string& refusal);

}  // namespace stowage::runtime
