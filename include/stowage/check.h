// The independent checker: is a plan valid for a graph? It shares no code with the planner and runs after every plan.
#pragma once

#include <cstdint>
#include <string>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage {

struct CheckReport {
  bool valid = false;
  int rule = 0;         // the rule of docs/formats.md section 2 that is broken (1 to 6), 0 for a plan of another graph
  std::string message;  // one line that names the rule and the ids; empty when valid
  std::int64_t peak_bytes = 0;  // largest sum of padded bytes live at one tick of one step; set when valid
};

// Simulates the plan step by step. `graph` must satisfy validate(). Never throws on a wrong plan: that is a report.
// O(S log S + P log P) for S steps and P placements and scratch buffers.
CheckReport check(const Graph& graph, const Plan& plan);

}  // namespace stowage
