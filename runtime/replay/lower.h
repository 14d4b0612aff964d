// Lowering: Tape in, Graph out. Bytes and dependencies only; torch stays behind.
#pragma once

#include <vector>

#include "runtime/record/tape.h"
#include "stowage/graph.h"

namespace stowage::runtime {

struct Lowered {
  Graph graph;                    // sealed
  std::vector<TapeOpId> tape_op;  // by graph op
  std::vector<BlockId> block;     // by graph buffer
  std::vector<BufferId> buffer;   // by block; invalid for blocks that only the host part sees
};

// `leaving`: residents that may wait on the host are marked so (Buffer::leaves).
Lowered lower(const Tape& tape, const std::string& name, bool leaving = false);

}  // namespace stowage::runtime
