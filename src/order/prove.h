// Raises the bound on an order's peak, up to a proof that it is optimal, by asking decide() about limits below it.
//
//   bound ├───No───▶│ . . . . . . │◀──Unknown──┤ best      Each "no" lifts the bound to the next limit worth asking about; "yes"
//                     next question                        gives an order.
//
// The problem is contracted first, takes the precedences that a peak below the best known forces (select.h), is
// contracted again, and cut down to what forced moves at both ends leave. Where tiny weights make the search explode,
// they are forgotten: without them the least peak can only be smaller, so the bound holds; it loses what they weigh.
#pragma once

#include <functional>

#include "order/ordering.h"
#include "order/problem.h"

namespace stowage {

// Never a worse order or bound than given. `best` may be a peak without its order, which the caller keeps; then the
// result has no order unless a better one is found. `work` about a nanosecond a unit.
BoundedOrder prove(const OrderProblem& problem, Ordering best, std::int64_t bound, std::int64_t& work,
                   const std::function<bool()>& should_stop);

}  // namespace stowage
