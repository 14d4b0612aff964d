// Tiles: a loss head, or an MLP block, done some rows at a time, so that its logits, or its hidden units, never exist
// whole. Opt-in, as the bits are others.
//
//   as recorded     h ─mm─► z ─log_softmax─► y ─nll─► loss       tiles, loss        h ▒▒▒│███│▒▒▒▒▒   z, y of these rows alone;
//                                            │                                            ▼           loss is added up
//                           dz ◄─────────────┘                   tiles, gradients   h ▒▒▒│███│▒▒▒▒▒   z, y again, dz of these rows;
//                   dh = dz W, dW = dzᵀ h                                                 ▼           dh of these rows, dW is added up
//
// An MLP block is the same with a product in the place of the loss, whose rows are the result:
//
//   forward     x ▒▒▒│███│▒▒▒▒▒  ─►  z, gelu(z) of these rows  ─►  y of these rows
//   backward    x, dy ▒▒▒│███│▒▒▒▒▒  ─►  z, gelu(z) again, their gradients  ─►  dx of these rows; dW1, dW2 are added up
//
// What is known of the tape: each op that looks at logits (or at anything of their size made of them) is one whose row r
// follows from the row r of its operands and from what all rows share, or one that sums over rows. So the recorded
// kernels themselves run on tiles of rows; sums over rows are added up tile by tile. Differs from chunked losses (Liger
// and others) in that no loss is given: whatever the step computes of its logits, by ops that
// tile_members.cpp knows, is tiled.
//
// Two ops stand for all: what needs nothing that is made of the region's own results (the loss; y), and what does (the
// gradients; nll_loss_backward the total weight). The second makes logits, or hidden units, again: a third more time of a
// head, a sixth more of an MLP block.
//
// Bits: sums over rows in another order, products of fewer rows. Nothing is compared bit for bit with the recorded
// kernels, then; each rehearsal runs both, measures the largest error (TileError), and holds the plan to the tiles' bits.
// Where an error is larger than roundings make it, the plan is made anew without tiles. CPU alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

struct TileOptions {
  bool loss = false;
  bool mlp = false;
  std::int64_t tile_bytes = 16 << 20;  // of a tile's logits or hidden units, about
  std::int64_t least_bytes = 1 << 20;  // of all of them
  bool wrong = false;                  // for tests: a number of the result is another one
};

enum class TileKind : std::uint8_t {
  kRows,     // some rows of the result, of these rows of operands
  kInPlace,  // the same, written over an operand
  kProduct,  // a product that sums over the rows
  kColumns,  // a sum over the rows
  kAll,      // a sum of all elements
  kNll,      // nll_loss_forward: two sums
  kNllRows,  // the same of reduction none: a number for each row, and a sum of nothing
};

struct TileOperand {
  std::size_t position = 0;  // among the arguments
  SlotId slot;
  bool inside = false;      // made by an earlier member, of the tile's rows
  bool by_row = false;      // else whole
  bool transposed = false;  // by_row: the op sees the rows as columns
  TensorMeta rows;          // as the op sees it, with the rows as first dimension; whole: what it is
};

struct TileMember {
  TapeOpId op;
  TileKind kind = TileKind::kRows;
  std::vector<TileOperand> operands;
  int dim_argument = -1;  // a dimension, or a list of one
  std::int64_t dim = -1;  // what it is within a tile
  int over = -1;          // the operand that the result may lie over
  [[nodiscard]] TileKind kind_of(std::size_t result) const {
    if (kind != TileKind::kNllRows) return kind;
    return result == 0 ? TileKind::kRows : TileKind::kAll;
  }
  std::vector<BlockId> results;  // in the order of the op's
  std::vector<BlockId> dead;     // within a tile, nobody needs them after it
};

struct TileOutput {
  BlockId block;
  TileKind how = TileKind::kRows;
  TensorMeta rows;  // kRows: with the rows as first dimension; else: one dimension, or two of a product
};

struct Tiles {
  std::vector<TileMember> members;  // in program order
  std::vector<TileOutput> outputs;
  std::vector<BlockId> reads;
  std::int64_t rows = 0;
  std::int64_t tile_rows = 0;
  std::int64_t pool_bytes = 0;  // that a tile takes
  TapeOpId at;                  // it runs in the place of this op, or just before it
  TapeOpId named;               // the member that it is named by
  bool wrong = false;

  [[nodiscard]] std::vector<BlockId> made() const {
    std::vector<BlockId> blocks;
    for (const TileOutput& output : outputs) blocks.push_back(output.block);
    return blocks;
  }
};

struct TilesFound {
  std::vector<Tiles> tiles;
  std::vector<bool> within;  // by op of the tape: a member, or one that only another member needed
  std::string refusal;       // why a head, or all MLP blocks, are not tiled; or ""
};

TilesFound find_tiles(const Tape& tape, const TileOptions& options);

// Of the tiles' results against those of the recorded kernels.
struct TileError {
  double relative = 0;  // the largest difference within a result, as a part of the largest number there
  double absolute = 0;
  std::string where;  // the op of the largest relative one
  bool too_large = false;
};

}  // namespace stowage::runtime
