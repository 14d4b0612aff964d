// Sees to it that kernels write nothing in the arena but their own blocks. For compile(strict="paranoid").
//
//   arena   ██ a ██ ░░░░░░ ██ b ██ ▒▒ c ▒▒ ░░░░      before the op: live blocks, and poison between them
//   op      reads a, makes c                          after it: all but c, and what it took meanwhile, must be as in the copy
//
// Poison is a byte of ones: as a float not a number, as an index -1. What dies is poisoned, so that who reads it shows
// in the step's bits. Costs two copies of the arena on the host, and their comparison after each op.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/memory/arena.h"

namespace stowage::runtime {

class ArenaWatch {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;  // [from, to) in the arena

  explicit ArenaWatch(Arena& arena) : arena_(arena) {
    if (arena.base() != nullptr) arena.device().fill(arena.base(), kPoison, arena.mapped_bytes());
    copy_.resize(static_cast<std::size_t>(arena.mapped_bytes()));
    now_.resize(copy_.size());
    read(copy_);
  }

  // The first byte outside of `own` that has changed since the last look, or -1.
  std::int64_t look(const std::vector<Range>& own) {
    read(now_);
    for (const auto& [from, to] : own) std::copy(now_.begin() + from, now_.begin() + to, copy_.begin() + from);
    const auto differs = std::mismatch(copy_.begin(), copy_.end(), now_.begin()).first;
    if (differs == copy_.end()) return -1;
    const std::int64_t at = differs - copy_.begin();
    copy_ = now_;
    return at;
  }

  void poison(const Range& range) {
    arena_.device().fill(arena_.base() + range.first, kPoison, range.second - range.first);
    std::fill(copy_.begin() + range.first, copy_.begin() + range.second, static_cast<char>(kPoison));
  }

 private:
  static constexpr int kPoison = 0xFF;

  void read(std::vector<char>& into) const {
    arena_.device().to_host(into.data(), arena_.base(), static_cast<std::int64_t>(into.size()));
  }

  Arena& arena_;
  std::vector<char> copy_, now_;
};

}  // namespace stowage::runtime
