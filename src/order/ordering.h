// An order that a search found, with its peak.
#pragma once

#include <cstdint>
#include <vector>

namespace stowage {

struct Ordering {
  std::vector<std::int32_t> ops;
  std::int64_t peak = 0;
};

}  // namespace stowage
