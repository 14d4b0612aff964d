// The link between the arena and the host store: two copy lanes, out and in, beside the kernels.
//
//   kernels   ▒▒ op 3 ▒▒ ▒▒ op 4 ▒▒ ▒▒▒▒ op 5 ▒▒▒▒
//   out       ██ a ████ ██ b ██                      a lane copies one buffer after the other
//   in                          ██ c ██
//
// A copy is started at one step and finished at a later one; the caller waits only where it is not complete by then.
// This is all that the executor knows of copying, so that streams and events of an accelerator can take the place of
// the two threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/memory/host_store.h"

namespace stowage::runtime {

class Device;

struct Copy {
  enum class Direction : std::uint8_t { kOut, kIn };
  Direction direction = Direction::kOut;
  void* device = nullptr;
  std::int64_t host_offset = 0;
  std::int64_t bytes = 0;
};

class Link {
 public:
  struct Ticket {
    Copy::Direction direction = Copy::Direction::kOut;
    std::int64_t number = 0;  // of the copy on its lane
  };

  virtual ~Link() = default;

  // Begins when the lane's earlier copies are complete. Device memory and host range stay as they are until finish() or
  // abandon().
  virtual Ticket start(const Copy& copy) = 0;

  // Waits for the copy. Returns "" or why it failed; a failed copy has left device memory unspecified if it was to go
  // there.
  virtual std::string finish(Ticket ticket) = 0;

  // Whether finish() would not wait.
  virtual bool complete(Ticket ticket) = 0;

  // Gives up all copies that are not complete; afterwards nothing touches device memory.
  virtual void abandon() = 0;
};

// Two threads, each a lane. `gbps`: 10^9 bytes a second of each lane, by a token bucket, with 10 us of latency a copy;
// 0: as fast as memory is. Copies so small that waking a thread costs more are made by the caller, on the lane's time.
// The threads start with the first other copy; where none can be had, the caller makes them all. One that ends in a
// copy has failed that one alone. A child made by fork() gets lanes of its own.
std::unique_ptr<Link> threaded_link(std::shared_ptr<HostStore> store, double gbps);

// For tests of what follows: a copy thread ends in the midst of its work, once they have moved so many parts (of a MiB)
// from now; negative: none. `no_more`: no copy thread is started from now. Returns how many parts an earlier call has
// left: -1 when its thread ended.
std::int64_t end_copy_thread(std::int64_t after_parts, bool no_more);

// So much of the device's memory a trial of its lanes takes, where there is room; with less it tells less.
constexpr std::int64_t kTrialBytes = std::int64_t{64} << 20;

// 10^9 bytes a second that each lane moves when both are busy: the median of a few copies, which take at most
// `room_bytes` of the device. 0 when the store cannot hold the trial, or the device has no room for it. What the store
// held is lost.
double measure_gbps(HostStore& store, Link& link, Device& device, std::int64_t room_bytes);

}  // namespace stowage::runtime
