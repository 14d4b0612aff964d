// The order of least peak, with a proven bound. Each stage ends the search when its order meets the bound.
//
//   program order ─▶ contraction, must-live bound ─▶ greedy ×4 ─▶ pinch    ─▶ turns     ─▶ branching on reuse
//                    (contract.h, critical.h)        (greedy.h)   (pinch.h)   (solve.h)    (reuse_branch.h)
//
// Each stage has a share of one allowance of work; what it leaves is for the next ones. Pinching under a limit close
// above the bound comes first: in steps of thousands of small ops it finds in a tenth of the work what the turns find,
// and more. In-place reuse is part of the problem (model.h): pairs whose input dies in every order count in each, and
// where others could close what is left of the gap, reuse_branch.h asks where they die. Never worse than program order. On captured training
// steps of 10^3 to 10^4 ops: milliseconds when proven, else the work limit: about a second.
#pragma once

#include <functional>
#include <vector>

#include "order/model.h"
#include "stowage/ids.h"

namespace stowage {

struct OrderOptions {
  std::int64_t work = 700'000'000;    // of all searches together; about a nanosecond a unit; the same on every machine
  std::function<bool()> should_stop;  // outer stop; empty: never
  bool in_place_reuse = true;         // count results that may lie over an input once; off: nowhere but in the bound
};

struct OrderResult {
  std::vector<std::vector<OpId>> orders;  // at least one; all of peak_bytes, the ones likely to lay out best first
  std::int64_t peak_bytes = 0;
  std::int64_t work = 0;         // what the searches used
  std::int64_t bound_bytes = 0;  // of all plans without recomputation and swapping, in-place reuse included
};

OrderResult find_order(const OrderModel& model, const OrderOptions& options);

// The bound alone, by must-live bytes and cuts.
std::int64_t root_bound(const OrderModel& model, std::int64_t work);

// No plan without in-place reuse has a smaller peak: must-live bytes and a few cuts.
std::int64_t plain_bound(const OrderModel& model);

}  // namespace stowage
