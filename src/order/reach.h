// Which op comes before which in every order: one bit a pair.
//
//   0 ──▶ 1 ──▶ 3        row 0: . 1 1 1      before(a, b) is bit b of row a
//   └───▶ 2 ────┘        row 1: . . . 1
//
// V²/8 bytes and O(E V / 64) word operations: for problems of up to a few tens of thousands of ops.
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"

namespace stowage {

class Reach {
 public:
  explicit Reach(const OrderProblem& problem) : words_((static_cast<std::size_t>(problem.ops) + 63) / 64) {
    bits_.assign(words_ * static_cast<std::size_t>(problem.ops), 0);
    for (std::int32_t op = problem.ops - 1; op >= 0; --op)  // ids are a topological order
      for (const std::int32_t s : problem.succs[op]) {
        set(op, s);
        for (std::size_t k = static_cast<std::size_t>(s) / 64; k < words_; ++k) row(op)[k] |= row(s)[k];
      }
  }

  [[nodiscard]] bool before(std::int32_t a, std::int32_t b) const {
    return (bits_[static_cast<std::size_t>(a) * words_ + static_cast<std::size_t>(b) / 64] >> (b % 64) & 1) != 0;
  }

 private:
  std::uint64_t* row(std::int32_t op) { return bits_.data() + static_cast<std::size_t>(op) * words_; }
  void set(std::int32_t op, std::int32_t bit) {
    row(op)[static_cast<std::size_t>(bit) / 64] |= std::uint64_t{1} << (bit % 64);
  }

  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace stowage
