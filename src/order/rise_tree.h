// What each ready op would add now, kept so that the first that fits is found in O(log V).
//
//   least          3                 A tournament of minima over the ops by id; infinite for those that are not ready.
//               3     7              first(room): go left where the left half holds one that fits.
//   op         9 3   ∞ 7
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace stowage {

class RiseTree {
 public:
  static constexpr std::int64_t kNotReady = std::numeric_limits<std::int64_t>::max();

  explicit RiseTree(std::int32_t ops)
      : leaves_(std::bit_ceil(static_cast<std::size_t>(std::max(ops, 1)))), least_(2 * leaves_, kNotReady) {}

  void set(std::int32_t op, std::int64_t rise) {
    std::size_t node = leaves_ + static_cast<std::size_t>(op);
    least_[node] = rise;
    while (node > 1) {
      node /= 2;
      least_[node] = std::min(least_[2 * node], least_[2 * node + 1]);
    }
  }

  [[nodiscard]] std::int64_t least() const { return least_[1]; }

  // The smallest id with a rise of at most `room`; there must be one.
  [[nodiscard]] std::int32_t first(std::int64_t room) const {
    std::size_t node = 1;
    while (node < leaves_) node = least_[2 * node] <= room ? 2 * node : 2 * node + 1;
    return static_cast<std::int32_t>(node - leaves_);
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> least_;
};

}  // namespace stowage
