// What happened under a budget, in order of time, for the report. Bounded: when it is full, every second entry is left
// out, and live bytes are noted half as often from then on.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/torch/op_traits.h"

namespace stowage::runtime::evict {

struct Event {
  enum class Kind : std::uint8_t { kLive, kDrop, kSwapOut, kRecompute, kSwapIn, kFetch, kStall };
  std::int64_t at_ns = 0;  // since the block was entered
  Kind kind = Kind::kLive;
  std::int64_t bytes = 0;  // live bytes, or those of the value
  const OpTraits* op = nullptr;
};

inline const char* to_string(Event::Kind kind) {
  constexpr const char* kNames[] = {"live", "drop", "swap_out", "recompute", "swap_in", "fetch", "stall"};
  return kNames[static_cast<std::size_t>(kind)];
}

class Timeline {
 public:
  void add(const Event& event) {
    if (events_.size() == kMostEvents) thin();
    events_.push_back(event);
  }
  // After each op; noted when it is time to, or the bytes have changed much.
  [[nodiscard]] bool due() { return ++ops_ % every_ == 0; }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }

 private:
  static constexpr std::size_t kMostEvents = 1 << 16;

  void thin() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < events_.size(); i += 2) events_[kept++] = events_[i];
    events_.resize(kept);
    every_ *= 2;
  }

  std::vector<Event> events_;
  std::uint64_t ops_ = 0;
  std::uint64_t every_ = 1;
};

}  // namespace stowage::runtime::evict
