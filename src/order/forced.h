// Forced moves: what may run at once without loss.
//
//   live │ limit ─ ─ ─ ─ ─ ─ ─ ─ ─       Running v now takes its step under the limit and leaves no more bytes than before.
//        │        ┌──┐ step of v         Then any order that keeps to the limit still does with v moved to the front: by
//        │────────┘  │                   submodularity (problem.h) v's change of live bytes, at most 0 now, is at most 0 after
//        │           └──────── ≤ before  any further ops, so no other step gets heavier.
//
// From the end of the order the same holds with time reversed: an op that raises live bytes runs as late as it can.
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"

namespace stowage {

// The ops that forced moves run from the start, in order. O((V + E) log V).
std::vector<std::int32_t> forced_prefix(const OrderProblem& problem, std::int64_t limit);

// The ops that forced moves leave to the end, in order.
std::vector<std::int32_t> forced_suffix(const OrderProblem& problem, std::int64_t limit);

}  // namespace stowage
