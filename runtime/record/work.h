// What a recorded step's kernels do from one op on: little, where its Python may as well run them by itself behind what
// is planned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/record/tape.h"

namespace stowage::runtime {

struct Work {
  std::int64_t kernels = 0;
  std::int64_t bytes = 0;       // of the blocks that they read and write
  std::int64_t made_bytes = 0;  // that they allocate
  // They write what was there before the step, draw, or belong to a backward pass or to an optimizer's step
  bool lasts = false;
};

// O(ops). `op` may be their number: of none.
Work work_from(const Tape& tape, std::size_t op);

}  // namespace stowage::runtime
