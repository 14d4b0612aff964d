// Tensors that a step comes by, taken by value: each argument has a block of its own.
//
//   recorded    stack(m[3], m[1], m[3])     blocks  M3 M1     becomes     stack(P0, P1, P2)     copies, one each
//   next call   stack(m[0], m[7], m[2])                                   P0 takes m[0], P1 m[7], P2 m[2]
//
// A step that draws from a list of tensors (a replay buffer) gives an op others in each call: now one of them twice, now
// two parts of one storage. Which arguments share memory differs from call to call, so no block can stand for a storage.
// Where no op of the step writes to what is found, it does not matter either: a copy of the bytes that an argument
// looks at, taken when Python gives it, is all that the op needs.
//
// Costs a copy of each argument in each call, so it is done where a call has shown the need (Block::scattered).
// O(arguments).
#pragma once

#include <set>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

// Rewrites the tape. By value: arguments over blocks of `anew`, those that look at a part of another found block, and
// those over `constants` that Python makes in the step, as it may put them into the list. Nothing of what `stay`s the same tensor. Returns
// those of `anew` that the step needs as wholes, too.
std::set<BlockId> take_by_value(Tape& tape, const std::set<BlockId>& anew, const std::set<BlockId>& constants,
                                const std::set<const c10::StorageImpl*>& stay);

}  // namespace stowage::runtime
