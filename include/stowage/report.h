// The report: what a plan does, as one page of HTML that needs no network, as a trace for Perfetto, or as a snapshot
// for PyTorch's memory viewer. See docs/formats.md section 6.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage {

struct ReportOptions {
  std::optional<std::int64_t> budget_bytes;       // shown as a line: residents + arena
  std::optional<std::int64_t> lower_bound_bytes;  // of the planner; nothing: not shown
  double link_gbps = 12;                          // of each swap lane, as in PlanOptions
  std::string ledger_json;                        // the sharding ledger, or empty
  std::string timeline_json;                      // the eager runtime's timeline, or empty
};

// What a report is about; graph and plan are both there or both null, and the plan must be valid for the graph.
struct ReportInput {
  const Graph* graph = nullptr;
  const Plan* plan = nullptr;
  ReportOptions options;
};

std::string report_html(const ReportInput& input);
std::string report_perfetto(const ReportInput& input);  // trace-event JSON
std::string report_snapshot(const ReportInput& input);  // a pickle like that of torch.cuda.memory._dump_snapshot

// Chosen by the end of the name: .html, .perfetto.json or .pickle. Throws Error for another end, for a plan that is not
// valid, for a ledger or timeline that cannot be read, and when the file cannot be written.
void save_report(const ReportInput& input, const std::string& path);

}  // namespace stowage
