// DELTA's director: recompute what is quicker to compute than to copy twice, swap the rest.
//
// Statement: r = 2 (m / B) / c, for m bytes, bandwidth B and compute time c of the op that made the value. r > 1: drop
// and recompute; else swap. Once a value has been swapped, its measured time out and in takes the place of 2 m / B.
//
//   c   ▂▂            2 m/B ▂▂▂▂▂▂▂▂    r = 4     drop
//   c   ▂▂▂▂▂▂▂▂▂▂▂▂  2 m/B ▂▂▂▂▂▂▂▂    r = 0.7   swap
//
// O(1). Tang et al., arXiv 2203.15980. Differs from the published code: there m / B is in microseconds and c in
// nanoseconds, which makes r a thousand times too small (it swaps always), B is a constant of one machine, and the
// measured time is read where it was never written. All are nanoseconds here and B is what copies took. What it leaves
// out, as the paper does: a value whose ancestors are gone costs their recomputation too.
#pragma once

#include <algorithm>

#include "eager/policy.h"

namespace stowage::eager {

class DeltaDirector : public Director {
 public:
  explicit DeltaDirector(const ValueTable& table) : table_(table) {}

  [[nodiscard]] double ratio(ValueId id) const {
    const Row& v = table_[id];
    const auto swap_ns = static_cast<double>(v.swap_ns > 0 ? v.swap_ns : 2 * table_.copy_ns(v.bytes));
    return swap_ns / static_cast<double>(std::max<std::int64_t>(v.compute_ns, 1));
  }
  How choose(ValueId id) override { return ratio(id) > 1 ? How::kDrop : How::kSwap; }

 private:
  const ValueTable& table_;
};

}  // namespace stowage::eager
