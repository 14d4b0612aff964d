#include "report/report_data.h"

#include <simdjson.h>

#include "stowage/check.h"
#include "stowage/error.h"

namespace stowage::report {

PlanData plan_data(const Graph& graph, const Plan& plan, const ReportOptions& options) {
  const CheckReport checked = check(graph, plan);
  if (!checked.valid) throw InvalidPlan(checked.message);
  const Pieces pieces(graph, plan);
  PlanData data;
  data.graph = &graph;
  data.plan = &plan;
  data.rects = plan_rects(graph, plan, pieces);
  data.program_rects = program_rects(graph);
  data.curve = live_curve(graph, data.rects, plan.steps.size());
  data.program_curve = live_curve(graph, data.program_rects, graph.ops.size());
  if (data.curve.peak_bytes != checked.peak_bytes) throw Error("the report and the checker disagree on the peak");
  data.timing = budget::predict(graph, plan.steps, {options.link_gbps});
  data.decisions = decisions(graph, plan, pieces, data.curve, data.timing);
  for (std::size_t s = 0; s < plan.steps.size(); ++s) data.again.push_back(pieces.again(static_cast<std::int32_t>(s)));
  data.program_step_ns = program_step_ns(graph);
  data.resident_bytes = staying_bytes(graph, plan);
  return data;
}

std::string source_line(const Op& op) {
  if (op.meta.empty()) return {};
  simdjson::dom::parser parser;
  std::string_view line;
  if (parser.parse(op.meta).at_key("line").get_string().get(line) != simdjson::SUCCESS) return {};
  return std::string(line);
}

}  // namespace stowage::report
