// Sees to it that kernels write nothing in the arena but their own blocks. For compile(strict="paranoid").
//
//   arena   ██ a ██ ░░░░░░ ██ b ██ ▒▒ c ▒▒ ░░░░      before the op: live blocks, and poison between them
//   op      reads a, makes c                          after it: all but c, and what it took meanwhile, must be as in the copy
//
// Poison is a byte of ones: as a float not a number, as an index -1. What dies is poisoned, so that who reads it shows
// in the step's bits. Costs a copy of the arena, and its comparison after each op.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/memory/arena.h"

namespace stowage::runtime {

class ArenaWatch {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;  // [from, to) in the arena

  explicit ArenaWatch(Arena& arena) : arena_(arena) {
    if (arena.base() != nullptr) std::memset(arena.base(), kPoison, static_cast<std::size_t>(arena.mapped_bytes()));
    copy_.assign(arena.base(), arena.base() + arena.mapped_bytes());
  }

  // The first byte outside of `own` that has changed since the last look, or -1.
  std::int64_t look(const std::vector<Range>& own) {
    for (const auto& [from, to] : own)
      std::memcpy(copy_.data() + from, arena_.base() + from, static_cast<std::size_t>(to - from));
    if (std::memcmp(copy_.data(), arena_.base(), copy_.size()) == 0) return -1;
    std::size_t i = 0;
    while (copy_[i] == arena_.base()[i]) ++i;
    copy_.assign(arena_.base(), arena_.base() + copy_.size());
    return static_cast<std::int64_t>(i);
  }

  void poison(const Range& range) {
    const auto bytes = static_cast<std::size_t>(range.second - range.first);
    std::memset(arena_.base() + range.first, kPoison, bytes);
    std::memset(copy_.data() + range.first, kPoison, bytes);
  }

 private:
  static constexpr int kPoison = 0xFF;

  Arena& arena_;
  std::vector<char> copy_;
};

}  // namespace stowage::runtime
