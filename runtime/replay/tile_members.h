// The ops of one region: all that look at what a product makes (logits; the hidden units of an MLP block), or at what is
// made of that in its size, and what each does with rows.
//
//   rows as first dimension     row r of the result follows from row r of its operands and from what all rows share
//   sums over rows              a product with the rows in its middle, a sum of columns or of all, nll_loss
//   anything else               the region is refused: it is not known to work row by row
//
// An op that makes as much of something smaller (an elementwise op of a row and a column; a product of narrower rows, as
// the gradient of hidden units, or the other half of a gated block) is a member, too, where a member reads what it makes:
// the search begins anew with each that it meets. O(ops of the tape) for each such op.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/replay/tiles.h"

namespace stowage::runtime {

inline constexpr std::int64_t kFewTiles = 4;  // a region of fewer rows is not tiled
inline constexpr std::int64_t kWidens = 2;    // a product that makes so many times wider rows begins or joins a region

struct RegionMembers {
  std::vector<TileMember> members;                     // in program order
  std::map<BlockId, std::vector<std::size_t>> makers;  // of what has rows: the members that make or change it
  std::map<BlockId, TileOutput> results;
  std::vector<bool> big;  // by block: of the first product's size, made of it
  std::int64_t rows = 0;  // of the first product
};

// Both halves of the work on a region read the tape, and keep the first reason why it cannot be tiled.
class RegionWork {
 public:
  explicit RegionWork(const Tape& tape) : tape_(tape) {}
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

// Of the region that begins with `product`. None where it cannot be tiled: `refusal` says why.
std::optional<RegionMembers> find_members(const Tape& tape, TapeOpId product, std::string& refusal);

}  // namespace stowage::runtime
