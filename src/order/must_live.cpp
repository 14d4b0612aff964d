#include "order/must_live.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "order/bit_row.h"

namespace stowage {
namespace {

// Adds `bytes` to change[i] where a run of ones starts at column i and subtracts it where one ends.
void add_runs(const BitRow& row, std::int64_t bytes, std::vector<std::int64_t>& change) {
  std::uint64_t carry = 0;
  for (std::int32_t k = 0; k < kRowWords; ++k) {
    std::uint64_t edges = row[k] ^ (row[k] << 1 | carry);
    carry = row[k] >> 63;
    while (edges != 0) {
      const int bit = std::countr_zero(edges);
      change[k * 64 + bit] += (row[k] >> bit & 1) != 0 ? bytes : -bytes;
      edges &= edges - 1;
    }
  }
}

// At most kRowColumns columns of the two relations.
class Block {
 public:
  explicit Block(const OrderProblem& p)
      : p_(p), column_(p.ops, -1), reach_(p.ops), held_(p.ops), change_(kRowColumns) {}

  void sweep(std::span<const std::int32_t> columns, std::span<std::int64_t> bytes) {
    for (std::size_t i = 0; i < columns.size(); ++i) column_[columns[i]] = static_cast<std::int32_t>(i);
    first_ = columns.front();
    last_ = columns.back();
    fill();
    std::fill(change_.begin(), change_.end(), 0);
    for (std::size_t w = 0; w < p_.weight.size(); ++w) add(w);
    std::int64_t now = p_.base;
    for (std::size_t i = 0; i < columns.size(); ++i) bytes[i] = (now += change_[i]) + p_.extra[columns[i]];
    for (const std::int32_t v : columns) column_[v] = -1;
  }

 private:
  void fill() {
    for (std::int32_t u = last_; u >= 0; --u) {  // ids are a topological order: what comes after u has a larger id
      BitRow row{};
      if (column_[u] >= 0) set(row, column_[u]);
      for (const std::int32_t s : p_.succs[u])
        if (s <= last_) join(row, reach_[s]);
      reach_[u] = row;
    }
    for (std::int32_t u = first_; u < p_.ops; ++u) {
      BitRow row{};
      if (column_[u] >= 0) set(row, column_[u]);
      for (const std::int32_t q : p_.preds[u])
        if (q >= first_) join(row, held_[q]);
      held_[u] = row;
    }
  }

  void add(std::size_t w) {
    BitRow opened{}, needed{};
    if (p_.open_at_start[w]) opened.fill(~std::uint64_t{0});
    if (p_.open_at_end[w]) needed.fill(~std::uint64_t{0});
    for (const std::int32_t o : p_.openers[w])
      if (o <= last_) join(opened, reach_[o]);
    for (const std::int32_t c : p_.closers[w])
      if (c >= first_) join(needed, held_[c]);
    for (std::int32_t k = 0; k < kRowWords; ++k) opened[k] &= needed[k];
    add_runs(opened, p_.weight[w], change_);
  }

  const OrderProblem& p_;
  std::vector<std::int32_t> column_;  // per op: which it is of this block; -1: none
  std::int32_t first_ = 0, last_ = 0;
  std::vector<BitRow> reach_, held_;
  std::vector<std::int64_t> change_;
};

}  // namespace

std::vector<std::int64_t> must_live(const OrderProblem& problem, std::span<const std::int32_t> columns) {
  std::vector<std::int64_t> bytes(columns.size());
  if (columns.empty()) return bytes;
  Block block(problem);
  for (std::size_t first = 0; first < columns.size(); first += kRowColumns) {
    const std::size_t count = std::min<std::size_t>(kRowColumns, columns.size() - first);
    block.sweep(columns.subspan(first, count), std::span(bytes).subspan(first, count));
  }
  return bytes;
}

std::vector<std::int64_t> must_live(const OrderProblem& problem) {
  std::vector<std::int32_t> all(problem.ops);
  std::iota(all.begin(), all.end(), 0);
  return must_live(problem, all);
}

}  // namespace stowage
