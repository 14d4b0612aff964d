#include "roam/spans.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace stowage::roam {
namespace {

Spans serial_spans(const OrderProblem& window) {
  const Reach below(window), above(reversed(window));
  Spans result{window.ops, {}, {}};
  for (std::int32_t op = 0; op < window.ops; ++op) {
    result.asap.push_back(above.descendants(window.ops - 1 - op));
    result.alap.push_back(window.ops - 1 - below.descendants(op));
  }
  return result;
}

Spans level_spans(const OrderProblem& window, double slack) {
  Spans result{0, std::vector<std::int32_t>(window.ops, 0), std::vector<std::int32_t>(window.ops, 0)};
  std::vector<std::int32_t> tail(window.ops, 0);  // longest path from the op on
  for (std::int32_t op = 0; op < window.ops; ++op) {
    for (const std::int32_t p : window.preds[op]) result.asap[op] = std::max(result.asap[op], result.asap[p] + 1);
    result.steps = std::max(result.steps, result.asap[op] + 1);
  }
  result.steps = static_cast<std::int32_t>(std::ceil(slack * result.steps));
  for (std::int32_t op = window.ops - 1; op >= 0; --op) {
    for (const std::int32_t s : window.succs[op]) tail[op] = std::max(tail[op], tail[s] + 1);
    result.alap[op] = result.steps - 1 - tail[op];
  }
  return result;
}

}  // namespace

Spans spans(const OrderProblem& window, Streams streams, double slack) {
  return streams == Streams::kSingle ? serial_spans(window) : level_spans(window, slack);
}

Reach::Reach(const OrderProblem& window) : words_((static_cast<std::size_t>(window.ops) + 63) / 64) {
  bits_.assign(words_ * static_cast<std::size_t>(window.ops), 0);
  for (std::int32_t op = window.ops - 1; op >= 0; --op) {
    std::uint64_t* row = &bits_[static_cast<std::size_t>(op) * words_];
    for (const std::int32_t s : window.succs[op]) {
      const std::uint64_t* below = &bits_[static_cast<std::size_t>(s) * words_];
      for (std::size_t w = 0; w < words_; ++w) row[w] |= below[w];
      row[static_cast<std::size_t>(s) / 64] |= std::uint64_t{1} << (s % 64);
    }
  }
}

std::int32_t Reach::descendants(std::int32_t op) const {
  std::int32_t count = 0;
  for (std::size_t w = 0; w < words_; ++w) count += std::popcount(bits_[static_cast<std::size_t>(op) * words_ + w]);
  return count;
}

}  // namespace stowage::roam
