// The Plan: what runs when, and where each buffer lies. See docs/formats.md for the file form and the rules of
// validity.
//
//   step        0          1          2          3              offset
//   op          mm         relu       sum        …        64 ┤ ┌───────┐relu_1
//   mm_1     [0, 2) at 0                                   0 ┤ │mm_1   │   ┌ loss [2, 4) at 0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stowage/graph.h"
#include "stowage/ids.h"

namespace stowage {

struct Step {
  enum class Kind : std::uint8_t { kRun, kSwapOut, kSwapIn };
  Kind kind = Kind::kRun;
  OpId op;                  // kRun
  BufferId buffer;          // kSwapOut, kSwapIn
  std::int32_t until = -1;  // kSwapOut, kSwapIn: the copy is complete before step `until` starts

  static Step run(OpId op) { return {Kind::kRun, op, {}, -1}; }
};

// The device holds `buffer` at `offset` during steps [from, to).
struct Placement {
  BufferId buffer;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int64_t offset = 0;
};

// Address of scratch buffer `index` of the op that runs at `step`.
struct ScratchPlacement {
  std::int32_t step = 0;
  std::int32_t index = 0;
  std::int64_t offset = 0;
};

struct Plan {
  std::string graph_sha256;
  std::int64_t align = 64;
  std::int64_t arena_bytes = 0;
  std::vector<Step> steps;
  std::vector<Placement> placements;      // by (from, buffer)
  std::vector<ScratchPlacement> scratch;  // by (step, index)
  std::string meta;                       // raw JSON object, or empty
  std::vector<BufferId> away = {};        // residents whose home is the host; increasing
};

// Sum of the bytes of residents that stay on the device.
std::int64_t staying_bytes(const Graph& graph, const Plan& plan);

}  // namespace stowage
