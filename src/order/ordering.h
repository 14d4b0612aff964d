// What a search hands back: an order with its peak, and how low any order can be.
#pragma once

#include <cstdint>
#include <vector>

#include "stowage/ids.h"

namespace stowage {

struct Ordering {
  std::vector<std::int32_t> ops;
  std::int64_t peak = 0;
};

struct BoundedOrder {
  Ordering order;
  std::int64_t bound = 0;  // no order of the problem has a smaller peak
};

inline std::vector<OpId> as_ops(const std::vector<std::int32_t>& order) { return {order.begin(), order.end()}; }

}  // namespace stowage
