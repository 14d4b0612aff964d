// The least peak of a small ordering problem by walking all its states: the naive twin of the searches in src/order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "order/problem.h"

namespace stowage::testing {

// Least peak, and least step of each op over all orders.
struct Brute {
  std::int64_t peak = 0;
  std::vector<std::int64_t> step;
};

class StateWalk {
 public:
  explicit StateWalk(const OrderProblem& p) : p_(p) {}

  Brute run() {
    Brute result{0, std::vector<std::int64_t>(p_.ops, std::numeric_limits<std::int64_t>::max())};
    std::map<std::uint32_t, std::int64_t> least{{0, p_.base}};  // state -> least peak of a way there
    for (std::uint32_t state = 0; state < 1U << p_.ops; ++state) {
      if (!least.contains(state)) continue;
      for (std::int32_t op = 0; op < p_.ops; ++op) {
        if (!ready(state, op)) continue;
        const std::uint32_t next = state | 1U << op;
        const std::int64_t step = live(state, state | 1U << op) + p_.extra[op];
        result.step[op] = std::min(result.step[op], step);
        const std::int64_t peak = std::max(least[state], step);
        least[next] = least.contains(next) ? std::min(least[next], peak) : peak;
      }
    }
    result.peak = least[(1U << p_.ops) - 1];
    return result;
  }

 private:
  bool ready(std::uint32_t state, std::int32_t op) const {
    if ((state >> op & 1) != 0) return false;
    return std::ranges::all_of(p_.preds[op], [&](std::int32_t q) { return (state >> q & 1) != 0; });
  }

  // Weights opened by `opened` and not closed before: `state` has run.
  std::int64_t live(std::uint32_t state, std::uint32_t opened) const {
    std::int64_t bytes = p_.base;
    for (std::size_t w = 0; w < p_.weight.size(); ++w) {
      bool open = p_.open_at_start[w] != 0, closed = p_.open_at_end[w] == 0;
      for (const std::int32_t op : p_.openers[w]) open |= (opened >> op & 1) != 0;
      for (const std::int32_t op : p_.closers[w]) closed &= (state >> op & 1) != 0;
      if (open && !closed) bytes += p_.weight[w];
    }
    return bytes;
  }

  const OrderProblem& p_;
};

}  // namespace stowage::testing
