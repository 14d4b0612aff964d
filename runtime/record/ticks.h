// An op's inside: what it allocated and gave back while it ran, told as ticks, scratch buffers and birth ticks of its
// results.
#pragma once

#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/record/tape.h"

namespace stowage::runtime {

// Replaces op.allocations, op.scratch, op.ticks, and for each created block op.born and its Block::allocation and
// Block::bytes. `data[i]` is where the data of op.creates[i] lies. Returns false when a created block with bytes on the
// tape's device was not allocated by the op.
bool take_inside(Tape& tape, TapeOp& op, const std::vector<AllocationEvent>& events,
                 const std::vector<const void*>& data);

}  // namespace stowage::runtime
