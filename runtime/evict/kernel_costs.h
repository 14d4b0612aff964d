// What a kernel costs on a device that runs behind the host: the host sees it asked for, not done.
//
//   first and second call of an op on tensors of these shapes     wait ── kernel ── wait: measured
//   from then on                                                  the lesser of the two; nothing is waited for
//
// The first one may load libraries or try algorithms, so it does not count alone. O(1) a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace stowage::runtime::evict {

class KernelCosts {
 public:
  [[nodiscard]] bool is_measured(std::uint64_t signature) const {
    const auto it = known_.find(signature);
    return it != known_.end() && it->second.times == kTimes;
  }
  void measured(std::uint64_t signature, std::int64_t took_ns) {
    Cost& cost = known_[signature];
    cost.least_ns = cost.times++ == 0 ? took_ns : std::min(cost.least_ns, took_ns);
  }
  [[nodiscard]] std::int64_t of(std::uint64_t signature) const { return known_.at(signature).least_ns; }

 private:
  static constexpr int kTimes = 2;
  struct Cost {
    std::int64_t least_ns = 0;
    int times = 0;
  };

  std::unordered_map<std::uint64_t, Cost> known_;  // by signature_of()
};

}  // namespace stowage::runtime::evict
