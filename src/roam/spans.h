// The first and the last step at which each op of a window can run.
//
//   a ─▶ b ─▶ d      single stream: asap = |ancestors|        a 0..0   b 1..2   c 1..2   d 3..3
//   └──▶ c ──┘       multi stream:  longest path to, from     a 0..0   b 1..1   c 1..1   d 2..2
//
// An op with asap = alap on a single stream is comparable with all others: memory-insensitive. O(V + E), single stream
// O(V E / 64).
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"
#include "roam/order_ilp.h"

namespace stowage::roam {

struct Spans {
  std::int32_t steps = 0;  // of the window
  std::vector<std::int32_t> asap, alap;
};

// `slack` >= 1 lengthens the multi-stream window beyond the longest path.
Spans spans(const OrderProblem& window, Streams streams, double slack);

// reach[u] as bits over ops: v is a descendant of u. O(V E / 64) time, V²/64 words.
class Reach {
 public:
  explicit Reach(const OrderProblem& window);
  [[nodiscard]] bool operator()(std::int32_t from, std::int32_t to) const {
    return (bits_[static_cast<std::size_t>(from) * words_ + static_cast<std::size_t>(to) / 64] >> (to % 64) & 1) != 0;
  }
  [[nodiscard]] std::int32_t descendants(std::int32_t op) const;

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace stowage::roam
