// The three kinds of report on small plans, some of them changed or under a budget, with any ledger and timeline: whole
// files, and nothing of the input in the page but in its data.
#include <random>

#include "fuzz/decode_graph.h"
#include "fuzz/target.h"
#include "io/json_grammar.h"
#include "stowage/check.h"
#include "stowage/report.h"
#include "support/random_plan.h"

namespace stowage::fuzz {
namespace {

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

Plan decode_plan(ByteSource& bytes, const Graph& graph, const PlanOptions& options) {
  if (bytes.chance(30)) {
    PlanOptions limited = options;
    limited.order_node_budget = limited.layout_node_budget = 50;
    limited.budget_bytes = decode_budget(bytes, graph);
    if (const PlanResult result = plan(graph, limited); result.plan) return *result.plan;
  }
  Plan found = testing::simple_plan(graph);
  for (auto changes = bytes.draw(0, 12); changes > 0; --changes) {
    std::mt19937_64 random(static_cast<std::uint64_t>(bytes.draw(0, 65'535)));
    Plan changed = testing::mutate(graph, found, random);
    if (check(graph, changed).valid && changed.steps.size() < 40) found = std::move(changed);
  }
  return found;
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  const PlanOptions options = fuzz::decode_options(bytes);
  const auto graph = fuzz::decode_graph(bytes, 9);
  if (!graph) return 0;
  const Plan plan = fuzz::decode_plan(bytes, *graph, options);
  ReportInput input{&*graph, &plan, {}};
  input.options.link_gbps = options.link_gbps;
  if (bytes.chance(30)) input.options.budget_bytes = bytes.draw(0, 1 << 20);
  if (bytes.chance(30)) input.options.lower_bound_bytes = lower_bound_bytes(*graph);
  const bool ledger = bytes.chance(20), timeline = !ledger && bytes.chance(20);
  if (ledger) input.options.ledger_json = bytes.rest();
  if (timeline) input.options.timeline_json = bytes.rest();
  fuzz::accepts([&] {
    const std::string page = report_html(input);
    fuzz::require(fuzz::count(page, "</script>") == 2 && fuzz::count(page, "{{") == 0,
                  "the page has its own scripts, and no others");
  });
  fuzz::require(io::is_json_object(report_perfetto(input)), "a trace is JSON");
  const std::string snapshot = report_snapshot(input);
  fuzz::require(snapshot.size() > 2 && snapshot.front() == '\x80' && snapshot.back() == '.',
                "a snapshot is a whole pickle");
  return 0;
}
