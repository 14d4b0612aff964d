#include "order/must_live.h"

#include <algorithm>
#include <array>
#include <bit>

namespace stowage {
namespace {

constexpr std::int32_t kWords = 8;
constexpr std::int32_t kColumns = 64 * kWords;
using Row = std::array<std::uint64_t, kWords>;

void join(Row& into, const Row& from) {
  for (std::int32_t k = 0; k < kWords; ++k) into[k] |= from[k];
}

void set(Row& row, std::int32_t column) { row[column >> 6] |= std::uint64_t{1} << (column & 63); }

// Adds `bytes` to change[i] where a run of ones starts at column i and subtracts it where one ends.
void add_runs(const Row& row, std::int64_t bytes, std::vector<std::int64_t>& change) {
  std::uint64_t carry = 0;
  for (std::int32_t k = 0; k < kWords; ++k) {
    std::uint64_t edges = row[k] ^ (row[k] << 1 | carry);
    carry = row[k] >> 63;
    while (edges != 0) {
      const int bit = std::countr_zero(edges);
      change[k * 64 + bit] += (row[k] >> bit & 1) != 0 ? bytes : -bytes;
      edges &= edges - 1;
    }
  }
}

// The columns [first, first + kColumns) of the two relations.
class Block {
 public:
  explicit Block(const OrderProblem& p) : p_(p), reach_(p.ops), held_(p.ops), change_(kColumns) {}

  void sweep(std::int32_t first, std::vector<std::int64_t>& bytes) {
    fill(first);
    std::fill(change_.begin(), change_.end(), 0);
    for (std::size_t w = 0; w < p_.weight.size(); ++w) add(w, first);
    const std::int32_t last = std::min(p_.ops, first + kColumns);
    std::int64_t now = p_.base;
    for (std::int32_t v = first; v < last; ++v) bytes[v] = (now += change_[v - first]) + p_.extra[v];
  }

 private:
  void fill(std::int32_t first) {
    const std::int32_t end = std::min(p_.ops, first + kColumns);
    for (std::int32_t u = end - 1; u >= 0; --u) {  // ids are a topological order: what comes after u has a larger id
      Row row{};
      if (u >= first) set(row, u - first);
      for (const std::int32_t s : p_.succs[u])
        if (s < end) join(row, reach_[s]);
      reach_[u] = row;
    }
    for (std::int32_t u = first; u < p_.ops; ++u) {
      Row row{};
      if (u < end) set(row, u - first);
      for (const std::int32_t q : p_.preds[u])
        if (q >= first) join(row, held_[q]);
      held_[u] = row;
    }
  }

  void add(std::size_t w, std::int32_t first) {
    Row opened{}, needed{};
    if (p_.open_at_start[w]) opened.fill(~std::uint64_t{0});
    if (p_.open_at_end[w]) needed.fill(~std::uint64_t{0});
    for (const std::int32_t o : p_.openers[w])
      if (o < first + kColumns) join(opened, reach_[o]);
    for (const std::int32_t c : p_.closers[w])
      if (c >= first) join(needed, held_[c]);
    for (std::int32_t k = 0; k < kWords; ++k) opened[k] &= needed[k];
    add_runs(opened, p_.weight[w], change_);
  }

  const OrderProblem& p_;
  std::vector<Row> reach_, held_;
  std::vector<std::int64_t> change_;
};

}  // namespace

std::vector<std::int64_t> must_live(const OrderProblem& problem) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(problem.ops));
  Block block(problem);
  for (std::int32_t first = 0; first < problem.ops; first += kColumns) block.sweep(first, bytes);
  return bytes;
}

}  // namespace stowage
