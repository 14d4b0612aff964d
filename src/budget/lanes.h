// The link: two copy lanes beside the ops, one out, one in. Each copies one buffer at a time, in the order in which
// copies are issued.
//
//   ops    ██A██████B██████C███████D██████E█████
//   out        ▒▒a▒▒▒▒▒                                a goes as soon as it is made and the lane is free,
//   in                            ▒▒▒a▒▒▒▒▒            comes back as late as it may, where the lane is free
//   a      ███████████·············████████████        away: in between
//
// A copy takes the latency plus bytes / bandwidth, all of it on its lane.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "budget/ledger.h"
#include "budget/restore.h"

namespace stowage::budget {

inline constexpr std::int64_t kMostCopyTime = std::int64_t{1} << 44;  // ns, five hours: no plan waits for such a copy

struct Link {
  double bytes_per_ns = 0;  // 0: no link
  std::int64_t latency_ns = 10'000;
  [[nodiscard]] bool there() const { return bytes_per_ns > 0; }
  // At most kMostCopyTime.
  [[nodiscard]] std::int64_t duration(std::int64_t bytes) const {
    const double ns = static_cast<double>(bytes) / bytes_per_ns;
    return ns < static_cast<double>(kMostCopyTime - latency_ns) ? latency_ns + static_cast<std::int64_t>(ns)
                                                                : kMostCopyTime;
  }
};

// Busy times of one lane, apart from each other and in order.
class Lane {
 public:
  void take(std::int64_t from, std::int64_t to);
  [[nodiscard]] std::int64_t earliest(std::int64_t from, std::int64_t duration) const;  // start of the first free time
  // Start of the last free time; may be negative
  [[nodiscard]] std::int64_t latest(std::int64_t to, std::int64_t duration) const;

 private:
  struct Busy {
    std::int64_t from, to;
  };
  std::vector<Busy> busy_;
};

class Lanes {
 public:
  Lanes(const Ledger& ledger, Link link);

  // The swap of a gap that holds up nothing; none: the copies would meet. With `at` in the gap, the buffer is away at
  // least there, and the cost is the time that the step has to wait.
  [[nodiscard]] std::optional<Move> swap(const Gap& gap, std::int32_t at = -1) const;
  // The swap of a gap that is away already, so that it is away at `at`, too.
  [[nodiscard]] std::optional<Move> widen(const Gap& gap, std::int32_t at) const;
  [[nodiscard]] double ns_per_byte() const { return link_.there() ? 1 / link_.bytes_per_ns : 0; }
  // Accounts for a swap that was chosen.
  void add(const Move& move, const Gap& gap);

 private:
  struct Times {
    std::int64_t out_from = 0, out_to = 0, in_from = 0, in_to = 0;
  };
  [[nodiscard]] Times times(const Gap& gap) const;

  const Ledger& ledger_;
  Link link_;
  Lane out_, in_;
  std::vector<Times> of_swap_;  // by Sequence::swaps
};

}  // namespace stowage::budget
