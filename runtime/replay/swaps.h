// The swaps of a plan, and where in the host store each waits.
//
//   step       2         4               9        11
//   plan       swap_out a, until 4       swap_in a, until 11
//   store      a's range is taken in steps [2, 11); then another buffer may have it
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/link.h"
#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::runtime {

struct Swap {
  Copy::Direction direction = Copy::Direction::kOut;
  BufferId buffer;
  std::int32_t step = 0;
  std::int32_t until = 0;
  std::int64_t host_offset = 0;
  bool home = false;  // of a resident that is away: it goes to, or comes from, where its tensor is
};

// A range of the host store that is needed during steps [from, to).
struct HostRange {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
};

struct SwapSchedule {
  std::vector<Swap> swaps;         // by step
  std::vector<HostRange> ranges;   // one for each swap_out
  std::int64_t host_bytes = 0;     // that the store must have
  std::int64_t swapped_bytes = 0;  // moved to the host
  std::int64_t fetched_bytes = 0;  // of residents that are away, moved from there
};

SwapSchedule schedule_swaps(const Graph& graph, const Plan& plan);

// Gives each range an offset so that none that share a step overlap, and returns the bytes needed.
std::int64_t place_in_host(std::vector<HostRange>& ranges);

}  // namespace stowage::runtime
