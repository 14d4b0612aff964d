// stowage check GRAPH PLAN: is the plan valid for the graph?
#include "stowage/check.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "stowage/io.h"
#include "stowage/json.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct CheckArguments {
  std::string graph;
  std::string plan;
  bool json = false;
};

std::string as_json(const CheckReport& report, const Plan& plan) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("valid", report.valid);
  object.field("rule", report.valid ? std::nullopt : std::optional(report.rule));
  object.field("message", report.message);
  object.field("peak_bytes", report.valid ? std::optional(report.peak_bytes) : std::nullopt);
  object.field("arena_bytes", plan.arena_bytes);
  object.close();
  return out + "\n";
}

std::string as_text(const CheckReport& report, const Plan& plan) {
  if (!report.valid) return "invalid: " + report.message + "\n";
  return "valid\npeak   " + words_and_bytes(report.peak_bytes) + "\narena  " + words_and_bytes(plan.arena_bytes) + "\n";
}

int run_check(const CheckArguments& arguments) {
  if (arguments.graph == "-" && arguments.plan == "-")
    throw UsageError("only one of GRAPH and PLAN can be standard input");
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  const Plan plan = read_input([&] { return load_plan(arguments.plan); });
  const CheckReport report = stowage::check(graph, plan);
  print_result(arguments.json ? as_json(report, plan) : as_text(report, plan));
  return report.valid ? kDone : kInvalidPlan;
}

}  // namespace

Verb add_check(CLI::App& app) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command = app.add_subcommand("check", "Check that a plan is valid for a graph");
  command->add_option("GRAPH", arguments->graph, "the graph file")->required();
  command->add_option("PLAN", arguments->plan, "the plan file")->required();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_check(*arguments); }};
}

}  // namespace stowage::cli
