// Who is on the device when, and how much that is: a plan's placements, or the buffers of program order, as rectangles
// of time and address; and their sum over time.
//
//   address                                      live bytes of a step: the most at one of its ticks
//     │   ┌──────────┐                                   ▄▄
//     │ ┌─┴─┐ b ┌────┴──┐                              ▄████▄▄
//     └─┴─a─┴───┴───c───┴──▶ time                     ▄████████▄▄
#pragma once

#include <cstdint>
#include <vector>

#include "plan/occupancy.h"
#include "report/pieces.h"
#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::report {

using checker::Time;
using checker::time_at;
inline std::int32_t step_of(Time time) { return static_cast<std::int32_t>(time >> 32); }
inline std::int32_t tick_of(Time time) { return static_cast<std::int32_t>(time & 0xffffffff); }

// How a buffer came to where it is.
enum class Origin : std::uint8_t { kRun, kRecompute, kSwapIn, kScratch };

struct Rect {
  BufferId buffer;  // invalid: scratch
  OpId op;          // that made it; invalid: a swap in
  Time start = 0;   // [start, end); a buffer that lies over another by in-place reuse appears when that one is gone
  Time end = 0;
  std::int64_t offset = -1;
  std::int64_t bytes = 0;
  Origin origin = Origin::kRun;
  BufferId over;  // what it lies over
};

struct Curve {
  std::vector<std::int64_t> live_bytes;  // per step, padded
  std::vector<std::int32_t> heaviest;    // per step: the tick at which this is so
  std::int32_t peak_step = -1;
  std::int64_t peak_bytes = 0;
};

// The plan must be valid for the graph. By start. O(P + S log S + the sizes of the ops that run).
std::vector<Rect> plan_rects(const Graph& graph, const Plan& plan, const Pieces& pieces);

// Each op once, as the program has them, every buffer freed after its last use; without addresses. O(V + E).
std::vector<Rect> program_rects(const Graph& graph);

// O(R log R).
Curve live_curve(const Graph& graph, const std::vector<Rect>& rects, std::size_t steps);

}  // namespace stowage::report
