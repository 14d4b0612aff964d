// Which kernels may write their result over an input.
//
//   x  ▒▒▒▒▒▒▒▒▒▒▒▒        Element by element: y[i] is written after the last read of x[i], whatever the vector width, the order of
//   y  ░░░░░░▒▒▒▒▒▒        the elements and the number of threads. Row by row: after the last read of the whole row of x, by the
//            ▲ i           one thread that has the row.
//
// Only ops on a list, by overload, each one because its CPU kernel is of one of these kinds; the tests run every one of
// them both ways and compare bits. Functional overloads only: their result is allocated inside, so the kernel sees two
// tensors that happen to share an address. Left out on purpose: plain copies (clone, _to_copy; memcpy does not promise
// anything for overlapping ranges), reductions, normalizations (they read a row again while others write theirs), and
// whatever is no list-free pointwise kernel.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

// Pairs (input, result) of the op's blocks for which that is safe: input and result are tensors of one dtype, sizes and
// strides that cover their blocks alike, and the op touches the input's block in no other way.
std::vector<std::pair<BlockId, BlockId>> in_place_reuse_blocks(const Tape& tape, const TapeOp& op);

}  // namespace stowage::runtime
