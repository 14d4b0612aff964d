// stowage report GRAPH PLAN -o FILE: the plan as a page, as a trace, or as a memory snapshot.
#include "stowage/report.h"

#include <CLI/CLI.hpp>

#include <memory>

#include "progress_line.h"
#include "stowage/check.h"
#include "stowage/io.h"
#include "stowage/planner.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct ReportArguments {
  std::string graph;
  std::string plan;
  std::string output;
  std::string ledger;
  std::string timeline;
  bool bound = true;
  ReportOptions options;
};

std::string optional_text(const std::string& path) {
  return path.empty() ? std::string() : read_input([&] { return load_text(path); });
}

int run_report(const ReportArguments& arguments) {
  if (arguments.graph == "-" && arguments.plan == "-")
    throw UsageError("only one of GRAPH and PLAN can be standard input");
  refuse_overwriting({arguments.graph, arguments.plan, arguments.ledger, arguments.timeline}, arguments.output);
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  const Plan plan = read_input([&] { return load_plan(arguments.plan); });
  const CheckReport checked = stowage::check(graph, plan);
  if (!checked.valid) {
    std::fprintf(stderr, "stowage: %s: invalid plan: %s\n", arguments.plan.c_str(), checked.message.c_str());
    return kInvalidPlan;
  }
  ReportInput input{&graph, &plan, arguments.options};
  input.options.ledger_json = optional_text(arguments.ledger);
  input.options.timeline_json = optional_text(arguments.timeline);
  const ProgressLine line("stowage report");
  if (arguments.bound) input.options.lower_bound_bytes = lower_bound_bytes(graph);
  read_input([&] {
    save_report(input, arguments.output);
    return 0;
  });
  return kDone;
}

}  // namespace

Verb add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "Show a plan: one HTML page, a Perfetto trace, or a PyTorch memory snapshot");
  command->add_option("GRAPH", arguments->graph, "the graph file")->required();
  command->add_option("PLAN", arguments->plan, "the plan file")->required();
  command->add_option("-o,--output", arguments->output, "FILE.html, FILE.perfetto.json or FILE.pickle")->required();
  add_bytes_option(
      *command, "--budget", [arguments](std::int64_t bytes) { arguments->options.budget_bytes = bytes; },
      "the budget that the plan was made for, to show it");
  command->add_option("--link-gbps", arguments->options.link_gbps, "speed of each swap lane, in 10^9 bytes a second")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag_callback(
      "--no-bound", [arguments] { arguments->bound = false; }, "do not prove a lower bound, which takes time");
  command->add_option("--ledger", arguments->ledger, "a sharding ledger to show: JSON, docs/formats.md section 6");
  command->add_option("--timeline", arguments->timeline, "an eager runtime's timeline to show: JSON, likewise");
  return {command, [arguments] { return run_report(*arguments); }};
}

}  // namespace stowage::cli
