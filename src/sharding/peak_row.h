// What one op needs alive, as a row of the integer program: added for an op only once a plan has passed the limit
// there.
//
//   state + tensors alive at the op, each at its home + copies that the op makes of its inputs and outputs   <=   limit
//
// The row counts no more than the ledger would, whatever is chosen, so that a bound under such rows is a bound: a
// tensor is alive from its maker to its own last use; a view counts only where the tensor it was made from is not
// counted, and only as much of it as that has. (The ledger lets a view keep its base alive, which depends on the
// choice; a plan may therefore still pass the limit where it has a row.) With a kept_share below 1, what is neither
// state nor of the op's first unit counts by that share. Rows are few because
// peaks are few. O(tensors + edges) for one row.
#pragma once

#include <utility>
#include <vector>

#include "sharding/space.h"

namespace stowage {

struct PeakRow {
  std::int32_t op = 0;
  double limit = 0;
  std::vector<std::vector<double>> home_bytes;          // per home, per code; empty: nothing of it is alive
  std::vector<std::pair<std::int32_t, double>> copies;  // (edge, copies of one tensor there)
};

PeakRow make_peak_row(const Space& space, std::int32_t op, std::int64_t limit);

}  // namespace stowage
