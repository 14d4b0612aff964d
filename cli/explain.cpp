// stowage explain GRAPH [PLAN]: where the bytes go, what holds the peak, what a budget costs, what to change; one
// screen.
#include "stowage/explain.h"

#include <CLI/CLI.hpp>

#include <memory>

#include "progress_line.h"
#include "stowage/check.h"
#include "stowage/io.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct ExplainArguments {
  std::string graph;
  std::string plan;
  ExplainOptions options;
  int width = 100;
  bool json = false;
};

int run_explain(const ExplainArguments& arguments) {
  if (arguments.graph == "-" && arguments.plan == "-")
    throw UsageError("only one of GRAPH and PLAN can be standard input");
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  std::optional<Plan> plan;
  if (!arguments.plan.empty()) {
    plan = read_input([&] { return load_plan(arguments.plan); });
    const CheckReport report = check(graph, *plan);
    if (!report.valid) {
      std::fprintf(stderr, "stowage: invalid: %s\n", report.message.c_str());
      return kInvalidPlan;
    }
  }
  Explanation explanation;
  {
    ProgressLine line("stowage explain");
    ExplainOptions options = arguments.options;
    options.plan.progress = line.callback();
    explanation = explain(graph, plan, options);
  }
  print_result(arguments.json ? to_json(graph, explanation) + "\n" : to_text(graph, explanation, arguments.width));
  if (explanation.result.plan) return kDone;
  return explanation.result.outcome == Outcome::kInfeasible ? kInfeasible : kStopped;
}

}  // namespace

Verb add_explain(CLI::App& app) {
  auto arguments = std::make_shared<ExplainArguments>();
  ExplainOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("explain", "Tell where the bytes go, what holds the peak, and what to change");
  command->add_option("GRAPH", arguments->graph, "the graph file")->required();
  command->add_option("PLAN", arguments->plan, "the plan to explain; without it the graph is planned");
  add_bytes_option(
      *command, "--budget", [arguments](std::int64_t bytes) { arguments->options.plan.budget_bytes = bytes; },
      "what the device holds; without a PLAN, the plan within it is explained");
  command->add_option("--link-gbps", options.plan.link_gbps, "speed of each swap lane, in 10^9 bytes a second")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag_callback(
      "--no-prices", [arguments] { arguments->options.prices = false; }, "plan no other budgets");
  command->add_flag_callback(
      "--no-advice", [arguments] { arguments->options.advice = false; }, "look for nothing to change");
  command->add_option("--width", arguments->width, "columns of the text")
      ->check(CLI::Range(60, 400))
      ->capture_default_str();
  command
      ->add_option("--time-limit", options.plan.time_limit_seconds,
                   "stop each search after this many seconds; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_explain(*arguments); }};
}

}  // namespace stowage::cli
