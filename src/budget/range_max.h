// Bytes over positions: add to a range, ask for the maximum of a range, both in O(log n).
//
//   tree over 8 positions      node: largest sum below it, and what was added to all of it
//        [0..8)                add(2, 7, x) touches [2..4) [4..6) [6..7): marks stay where a whole node is covered,
//     [0..4)  [4..8)           and maxima are taken up on the way back. No pushing down: a query adds the marks above.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace stowage::budget {

class RangeMax {
 public:
  explicit RangeMax(const std::vector<std::int64_t>& values) : size_(1) {
    while (size_ < static_cast<std::int32_t>(values.size())) size_ *= 2;
    most_.assign(2 * static_cast<std::size_t>(size_), kLeast);
    mark_.assign(2 * static_cast<std::size_t>(size_), 0);
    std::copy(values.begin(), values.end(), most_.begin() + size_);
    for (std::int32_t i = size_ - 1; i > 0; --i) most_[i] = std::max(most_[2 * i], most_[2 * i + 1]);
  }

  void add(std::int32_t from, std::int32_t to, std::int64_t value) {  // [from, to)
    if (from >= to || value == 0) return;
    std::int32_t l = from + size_, r = to + size_;
    const std::int32_t first = l, last = r - 1;
    for (; l < r; l /= 2, r /= 2) {
      if (l & 1) apply(l++, value);
      if (r & 1) apply(--r, value);
    }
    rise(first);
    rise(last);
  }

  [[nodiscard]] std::int64_t max(std::int32_t from, std::int32_t to) const {  // [from, to); least when empty
    if (from >= to) return kLeast;
    return query(1, 0, size_, from, to);
  }
  [[nodiscard]] std::int64_t max() const { return most_[1]; }

  [[nodiscard]] std::int64_t at(std::int32_t position) const {
    std::int32_t i = position + size_;
    std::int64_t value = most_[i];
    while ((i /= 2) > 0) value += mark_[i];
    return value;
  }

  // First position in [from, size) with a value above `limit`; -1: none.
  [[nodiscard]] std::int32_t first_above(std::int64_t limit) const {
    if (most_[1] <= limit) return -1;
    std::int32_t i = 1;
    while (i < size_) {
      limit -= mark_[i];
      i = most_[2 * i] > limit ? 2 * i : 2 * i + 1;
    }
    return i - size_;
  }

  // A position of the maximum, the first one.
  [[nodiscard]] std::int32_t top() const {
    std::int32_t i = 1;
    while (i < size_) i = most_[2 * i] >= most_[2 * i + 1] ? 2 * i : 2 * i + 1;
    return i - size_;
  }

  static constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min() / 4;

 private:
  void apply(std::int32_t i, std::int64_t value) {
    most_[i] += value;
    if (i < size_) mark_[i] += value;
  }
  void rise(std::int32_t i) {
    while ((i /= 2) > 0) most_[i] = std::max(most_[2 * i], most_[2 * i + 1]) + mark_[i];
  }
  [[nodiscard]] std::int64_t query(std::int32_t i, std::int32_t lower, std::int32_t upper, std::int32_t from,
                                   std::int32_t to) const {
    if (from <= lower && upper <= to) return most_[i];
    const std::int32_t middle = (lower + upper) / 2;
    std::int64_t best = kLeast;
    if (from < middle) best = std::max(best, query(2 * i, lower, middle, from, to));
    if (to > middle) best = std::max(best, query(2 * i + 1, middle, upper, from, to));
    return best + mark_[i];
  }

  std::int32_t size_;
  std::vector<std::int64_t> most_, mark_;
};

}  // namespace stowage::budget
