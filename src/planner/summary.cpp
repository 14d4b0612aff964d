#include "stowage/summary.h"

#include <optional>

namespace stowage {
namespace {

Figure optional_figure(std::string_view name, const std::optional<std::int64_t>& value) {
  if (value) return {name, *value};
  return {name, std::monostate()};
}

std::vector<Figure> seconds_of(const PhaseSeconds& s) {
  return {{"load", s.load},     {"budget", s.budget}, {"order", s.order},
          {"layout", s.layout}, {"verify", s.verify}, {"total", s.total}};
}

}  // namespace

Summary summarize(const Graph& graph, const PlanOptions& options, const PlanResult& r) {
  Summary summary{{{"outcome", to_string(r.outcome)},
                   {"ops", static_cast<std::int64_t>(graph.ops.size())},
                   {"buffers", static_cast<std::int64_t>(graph.buffers.size())},
                   {"resident_bytes", r.resident_bytes},
                   {"program_peak_bytes", r.program_peak_bytes},
                   {"peak_bytes", r.peak_bytes, true},
                   {"lower_bound_bytes", r.lower_bound_bytes},
                   {"gap", r.gap, true},
                   {"arena_bytes", r.plan ? r.plan->arena_bytes : 0, true},
                   optional_figure("budget_bytes", options.budget_bytes),
                   {"recomputed_ops", r.recomputed_ops, true},
                   {"recompute_ns", r.recompute_ns, true},
                   {"swapped_bytes", r.swapped_bytes, true},
                   {"step_ns", r.step_ns, true},
                   {"program_step_ns", r.program_step_ns},
                   optional_figure("step_bound_ns", r.step_bound_ns)},
                  seconds_of(r.seconds)};
  if (r.away_bytes > 0) {
    summary.figures.push_back({"away_bytes", r.away_bytes, true});
    summary.figures.push_back({"fetched_bytes", r.fetched_bytes, true});
  }
  return summary;
}

}  // namespace stowage
