// The time model of docs/formats.md section 3: when each step of a plan runs, and what it waits for.
//
//   step      A   out b     B       C  in b   D         ops one after another; each lane copies in the order of issue;
//   ops       ██            ███████ ██ ·······████      a step waits for the copies that are to be complete before it
//   out lane     ▒▒▒▒▒▒▒▒▒
//   in lane                            ▒▒▒▒▒▒▒
//
// All waiting is put down to the copy that is waited for, so step_ns is the sum of the costs and of all waits.
// O(steps).
#pragma once

#include <cstdint>
#include <vector>

#include "budget/lanes.h"
#include "stowage/plan.h"

namespace stowage::budget {

struct StepTime {
  std::int64_t from_ns = 0;  // of a copy: its time on the lane
  std::int64_t to_ns = 0;
  std::int64_t wait_ns = 0;     // before it, for a copy
  std::int32_t waits_for = -1;  // the step that issued that copy
};

struct Timing {
  std::vector<StepTime> steps;
  StepTime end;  // what the end of the step waits for
  std::int64_t step_ns = 0;
};

Timing predict(const Graph& graph, const std::vector<Step>& steps, Link link);

}  // namespace stowage::budget
