// Batch norm in training: running statistics are written on the side.
//
//   native_batch_norm(x, w, b, running_mean, running_var)  ──►  y, save_mean, save_invstd      from x, w and b alone
//                              └──── updated ────┘
//
// So its results can be made again without the statistics, as long as each of its first runs updates them, in program
// order: the graph shows that as `after` instead of a write, which would forbid a second run. Told only where nothing
// else looks at the statistics (a backward pass in training takes them as arguments and does not read them), and where
// the input has their dtype (else the kernel would take another path without them).
#pragma once

#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

// By block: nothing but batch norms in training touches it, as running statistics.
std::vector<bool> side_statistics(const Tape& tape);

// The op is a batch norm in training and `argument` its running mean or variance. A second run gets none.
bool updates_on_the_side(const TapeOp& op, std::size_t argument);

}  // namespace stowage::runtime
