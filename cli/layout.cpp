// stowage layout INTERVALS.csv: addresses for buffers whose live intervals are fixed.
#include "stowage/layout.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "stowage/stopwatch.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct LayoutArguments {
  std::string intervals;
  std::optional<std::string> output;
  std::optional<std::int64_t> capacity;
  double effort = 1;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool json = false;
};

std::string as_json(const LayoutResult& result, std::size_t buffers, double seconds) {
  const bool found = result.outcome == Outcome::kOptimal || result.outcome == Outcome::kFeasible;
  std::string out;
  io::ObjectWriter object(out);
  object.field("outcome", to_string(result.outcome));
  object.field("buffers", buffers);
  object.field("height_bytes", found ? std::optional(result.height_bytes) : std::nullopt);
  object.field("lower_bound_bytes", result.lower_bound_bytes);
  object.field("gap", found ? std::optional(gap(result.height_bytes, result.lower_bound_bytes)) : std::nullopt);
  object.field("seconds", seconds);
  object.close();
  return out + "\n";
}

std::string as_text(const LayoutResult& result) {
  return std::string(to_string(result.outcome)) + "\nheight       " + words_and_bytes(result.height_bytes) +
         "\nlower bound  " + words_and_bytes(result.lower_bound_bytes) + "\n";
}

// A layout above the capacity is nothing to show.
LayoutResult solve(const IntervalsFile& file, const LayoutArguments& arguments) {
  const std::optional<std::int64_t>& capacity = arguments.capacity;
  LayoutOptions options;
  options.capacity = capacity;
  options.node_budget = static_cast<std::int64_t>(static_cast<double>(options.node_budget) * arguments.effort);
  options.threads = arguments.threads;
  LayoutResult result = stowage::layout(file.items, options);
  const bool found = result.outcome == Outcome::kOptimal || result.outcome == Outcome::kFeasible;
  if (found && capacity && result.height_bytes > *capacity) {
    result.outcome = result.outcome == Outcome::kOptimal ? Outcome::kInfeasible : Outcome::kUnknown;
  }
  return result;
}

int run_layout(const LayoutArguments& arguments) {
  if (arguments.output == "-" && arguments.json) throw UsageError("-o - and --json cannot share stdout");
  refuse_overwriting({arguments.intervals}, arguments.output.value_or(""));
  const IntervalsFile file = read_input([&] { return load_intervals(arguments.intervals); });
  const Stopwatch watch;
  const LayoutResult result = [&] {
    const ProgressLine line("stowage layout");
    return solve(file, arguments);
  }();
  if (arguments.json) print_result(as_json(result, file.items.size(), watch.seconds()));
  if (result.outcome == Outcome::kInfeasible) {
    std::fprintf(stderr, "stowage: infeasible: no layout has a height of at most %lld bytes\n",
                 static_cast<long long>(arguments.capacity.value_or(0)));
    return kInfeasible;
  }
  if (result.outcome == Outcome::kUnknown) {
    std::fprintf(stderr, "stowage: stopped by a limit without a layout\n");
    return kStopped;
  }
  if (arguments.output) save_intervals(file, result.offsets, *arguments.output);
  if (!arguments.json && arguments.output != "-") print_result(as_text(result));
  return kDone;
}

}  // namespace

Verb add_layout(CLI::App& app) {
  auto arguments = std::make_shared<LayoutArguments>();
  CLI::App* command = app.add_subcommand("layout", "Give addresses to buffers whose live intervals are fixed");
  command->add_option("INTERVALS.csv", arguments->intervals, "the intervals: id,lower,upper,size")->required();
  command->add_option("-o,--output", arguments->output, "write the intervals with their offsets to this file");
  add_bytes_option(
      *command, "--capacity", [arguments](std::int64_t bytes) { arguments->capacity = bytes; },
      "the height that is allowed");
  command
      ->add_option("--effort", arguments->effort, "so many times the work of the searches: a number from 0.01 to 1000")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "the layout is the same at any number; default: all cores")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_layout(*arguments); }};
}

}  // namespace stowage::cli
