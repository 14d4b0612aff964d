// Sees to it that kernels write nothing in the arena but their own blocks. For compile(strict="paranoid").
//
//   arena   ██ a ██ ░░░░░░ ██ b ██ ▒▒ c ▒▒ ░░░░      before the op: live blocks, and poison between them
//   op      reads a, makes c                          after it: all but c, and what it took meanwhile, must be as before
//
// Poison is a byte of ones: as a float not a number, as an index -1. What dies is poisoned, so that who reads it shows
// in the step's bits. Blocks begin at lines of the arena, so all lines that are no block of the op's are told apart by
// their sums (Device::sums()), and what is left of a block's last line by its bytes: no look brings the arena to the
// host. Two changes within one line that add up to nothing are not seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/arena.h"

namespace stowage::runtime {

class ArenaWatch {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;  // [from, to) in the arena

  explicit ArenaWatch(Arena& arena) : arena_(arena) {
    if (arena.base() == nullptr) return;
    line_bytes_ = arena.device().align_bytes();
    arena.device().fill(arena.base(), kPoison, arena.mapped_bytes());
    known_ = lines();
  }

  // Before an op that may write within `own`.
  void begin(std::vector<Range> own) {
    std::sort(own.begin(), own.end());
    tails_.clear();
    for (std::size_t i = 0; i < own.size(); ++i) {
      std::int64_t to = std::min(up(own[i].second), arena_.mapped_bytes());
      for (std::size_t next = i + 1; next < own.size(); ++next)
        to = std::min(to, std::max(own[next].first, own[i].second));
      if (own[i].second < to) tails_.push_back({{own[i].second, to}, read(own[i].second, to)});
    }
  }
  // After it: the first byte outside of `own`, to the line, that has changed since, or -1.
  std::int64_t look(const std::vector<Range>& own) {
    for (const auto& [range, before] : tails_) {
      const std::string now = read(range.first, range.second);
      for (std::int64_t at = range.first; at < range.second; ++at) {
        const auto i = static_cast<std::size_t>(at - range.first);
        const bool may = std::any_of(own.begin(), own.end(), [at](Range r) { return r.first <= at && at < r.second; });
        if (!may && now[i] != before[i]) return at;
      }
    }
    std::vector<std::int64_t> now = lines();
    for (const auto& [from, to] : own) {
      for (std::int64_t at = from / line_bytes_; at * line_bytes_ < std::min(to, end()); ++at)
        known_[static_cast<std::size_t>(at)] = now[static_cast<std::size_t>(at)];
    }
    const auto differs = std::mismatch(known_.begin(), known_.end(), now.begin()).first;
    if (differs == known_.end()) return -1;
    const std::int64_t at = (differs - known_.begin()) * line_bytes_;
    known_ = std::move(now);
    return at;
  }

  void poison(const Range& range) {
    if (range.first == range.second) return;
    arena_.device().fill(arena_.base() + range.first, kPoison, range.second - range.first);
    const std::int64_t from = range.first / line_bytes_ * line_bytes_;
    const std::int64_t to = std::min(up(range.second), end());
    const std::vector<std::int64_t> now = arena_.device().sums(arena_.base() + from, to - from).of_lines;
    std::copy(now.begin(), now.end(), known_.begin() + from / line_bytes_);
  }

 private:
  static constexpr int kPoison = 0xFF;

  [[nodiscard]] std::int64_t up(std::int64_t at) const { return (at + line_bytes_ - 1) / line_bytes_ * line_bytes_; }
  [[nodiscard]] std::int64_t end() const {
    return arena_.mapped_bytes() / line_bytes_ * line_bytes_;
  }  // of whole lines
  [[nodiscard]] std::vector<std::int64_t> lines() const {
    if (arena_.base() == nullptr) return {};
    return arena_.device().sums(arena_.base(), end()).of_lines;
  }
  [[nodiscard]] std::string read(std::int64_t from, std::int64_t to) const {
    std::string bytes(static_cast<std::size_t>(to - from), '\0');
    arena_.device().to_host(bytes.data(), arena_.base() + from, to - from);
    return bytes;
  }

  Arena& arena_;
  std::int64_t line_bytes_ = 1;
  std::vector<std::int64_t> known_;                   // sums of the lines
  std::vector<std::pair<Range, std::string>> tails_;  // of the last lines of an op's own blocks
};

}  // namespace stowage::runtime
