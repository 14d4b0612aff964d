// stowage strategy PROBLEM.json: one strategy per node, so that costs sum to the least while bytes stay under the
// limit.
#include "stowage/strategy.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <optional>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/stopwatch.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct StrategyArguments {
  std::string problem;
  std::optional<std::string> output;
  double time_limit_seconds = 0;
  std::uint64_t seed = 0;
  bool json = false;
};

std::string as_json(const StrategyProblem& problem, const StrategyResult& result, double seconds) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("outcome", to_string(result.outcome));
  object.field("nodes", problem.nodes.size());
  object.field("edges", problem.edges.size());
  if (result.strategies.empty() && !problem.nodes.empty()) {
    for (const char* key : {"cost", "bound", "gap"}) object.null(key);
  } else {
    object.field("cost", result.cost);
    object.field("bound", result.bound);
    object.field("gap", result.gap());
  }
  object.field("seconds", seconds);
  object.close();
  return out + "\n";
}

std::string as_text(const StrategyResult& result) {
  char gap[32];
  std::snprintf(gap, sizeof gap, "%.3f %%", 100 * result.gap());
  return std::string(to_string(result.outcome)) + "\ncost   " + std::to_string(result.cost) + "\nbound  " +
         std::to_string(result.bound) + "\ngap    " + gap + "\n";
}

int run_strategy(const StrategyArguments& arguments) {
  if (arguments.output == "-" && arguments.json) throw UsageError("-o - and --json cannot share stdout");
  refuse_overwriting({arguments.problem}, arguments.output.value_or(""));
  const StrategyProblem problem = read_input([&] { return load_strategy_problem(arguments.problem); });
  const Stopwatch watch;
  StrategyOptions options;
  options.seed = arguments.seed;
  if (arguments.time_limit_seconds > 0)
    options.should_stop = [&] { return watch.seconds() > arguments.time_limit_seconds; };
  const StrategyResult result = [&] {
    const ProgressLine line("stowage strategy");
    return choose_strategies(problem, options);
  }();
  const double seconds = watch.seconds();
  if (arguments.json) print_result(as_json(problem, result, seconds));
  if (result.outcome == Outcome::kInfeasible) {
    std::fprintf(stderr, "stowage: infeasible: no choice of strategies is allowed and keeps the limit\n");
    return kInfeasible;
  }
  if (result.outcome == Outcome::kUnknown) {
    std::fprintf(stderr, "stowage: stopped by a limit without a choice that keeps the limit\n");
    return kStopped;
  }
  if (arguments.output) save(result, seconds, *arguments.output);
  if (!arguments.json && arguments.output != "-") print_result(as_text(result));
  return kDone;
}

}  // namespace

Verb add_strategy(CLI::App& app) {
  auto arguments = std::make_shared<StrategyArguments>();
  CLI::App* command = app.add_subcommand("strategy", "Choose one strategy per node: least cost, bytes under the limit");
  command->add_option("PROBLEM.json", arguments->problem, "nodes with strategies, edges with costs, a usage limit")
      ->required();
  command->add_option("-o,--output", arguments->output, "write the choice to this file");
  command->add_option("--time-limit", arguments->time_limit_seconds, "stop after so many seconds")
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", arguments->seed, "of the random moves");
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_strategy(*arguments); }};
}

}  // namespace stowage::cli
