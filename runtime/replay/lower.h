// Lowering: Tape in, Graph out. Bytes and dependencies only; torch stays behind.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/record/tape.h"
#include "runtime/replay/product_over.h"
#include "runtime/replay/row_slices.h"
#include "runtime/replay/tiles.h"
#include "stowage/graph.h"

namespace stowage::runtime {

struct Lowered {
  Graph graph;                    // sealed
  std::vector<TapeOpId> tape_op;  // by graph op
  std::vector<BlockId> block;     // by graph buffer
  // By block; invalid for blocks that only the host part sees, and for what a chain of rows makes on its way
  std::vector<BufferId> buffer;
  // By block: its op makes it in the memory of the step's result, and its buffer is a resident that the op writes
  std::vector<bool> in_result;
  // By block: what the step returns, and its next call lets go of unread; it stays in the arena until then
  std::vector<bool> stays;
  std::vector<RowChain> chains;
  std::vector<int> chain;  // by graph op: the one that it stands for, or -1; tape_op is its last op then
  std::vector<ProductOver> products;
  std::vector<int> product;  // by graph op, or -1
  std::vector<Tiles> tiles;
  std::vector<int> tile;     // by graph op: the tiles that it stands for, or -1; tape_op is the op that names them then
  std::string tile_refusal;  // why not all is tiled that was to be, where that is asked for
};

// What an op does, whatever it does it to: its name with its overload, or the title of a generated kernel.
std::string kind_of(const TapeOp& op);

struct LowerOptions {
  RowSlicing slicing;
  TileOptions tiles;
  bool leaving = false;        // residents that may wait on the host are marked so (Buffer::leaves)
  std::set<std::string> once;  // kinds of ops whose kernels do not repeat their bits (Op::once)
  // What the step returns is made in its result's memory where that can be; else it is a buffer like all others, and is
  // copied
  bool in_results = false;
  bool stay = false;  // what the step's next call lets go of unread stays in the arena
};

Lowered lower(const Tape& tape, const std::string& name, const LowerOptions& options);

}  // namespace stowage::runtime
