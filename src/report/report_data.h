// All that a report shows, as one value computed from a graph and a plan; its forms (html_page, perfetto, snapshot)
// only write it down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/curve.h"
#include "report/decisions.h"
#include "stowage/report.h"

namespace stowage::report {

struct PlanData {
  const Graph* graph = nullptr;
  const Plan* plan = nullptr;
  std::vector<Rect> rects;          // of the plan, with addresses
  std::vector<Rect> program_rects;  // of program order
  Curve curve;
  Curve program_curve;
  budget::Timing timing;
  Decisions decisions;
  std::vector<bool> again;  // per step: runs an op that has run before
  std::int64_t program_step_ns = 0;
  std::int64_t resident_bytes = 0;
};

// Throws InvalidPlan for a plan that is not valid for the graph.
PlanData plan_data(const Graph& graph, const Plan& plan, const ReportOptions& options);

// "file:line" of the user's code from an op's meta, or "".
std::string source_line(const Op& op);

}  // namespace stowage::report
