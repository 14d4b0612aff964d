// stowage plan GRAPH -o PLAN: the order and the addresses, within a budget when one is given.
#include "stowage/plan.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct Arguments {
  std::string graph;
  std::string output;
  PlanOptions options;
  bool json = false;
};

struct Seconds {
  double load = 0;
  double total = 0;
};

void append_seconds(std::string& out, const PhaseSeconds& phases, const Seconds& seconds) {
  io::ObjectWriter object(out);
  object.field("load", seconds.load);
  object.field("budget", phases.budget);
  object.field("order", phases.order);
  object.field("layout", phases.layout);
  object.field("verify", phases.verify);
  object.field("total", seconds.total);
  object.close();
}

void optional_field(io::ObjectWriter& object, std::string_view name, const std::optional<std::int64_t>& value) {
  if (value) {
    object.field(name, *value);
  } else {
    object.null(name);
  }
}

// What only a plan has is null when there is none.
std::string as_json(const Graph& graph, const PlanOptions& options, const PlanResult& result, const Seconds& seconds) {
  const auto of_plan = [&](std::int64_t value) { return result.plan ? std::optional(value) : std::nullopt; };
  std::string out;
  io::ObjectWriter object(out);
  object.field("outcome", to_string(result.outcome));
  object.field("ops", graph.ops.size());
  object.field("buffers", graph.buffers.size());
  object.field("resident_bytes", result.resident_bytes);
  object.field("program_peak_bytes", result.program_peak_bytes);
  optional_field(object, "peak_bytes", of_plan(result.peak_bytes));
  object.field("lower_bound_bytes", result.lower_bound_bytes);
  if (result.plan) {
    object.field("gap", result.gap);
  } else {
    object.null("gap");
  }
  optional_field(object, "arena_bytes", of_plan(result.plan ? result.plan->arena_bytes : 0));
  optional_field(object, "budget_bytes", options.budget_bytes);
  optional_field(object, "recomputed_ops", of_plan(result.recomputed_ops));
  optional_field(object, "recompute_ns", of_plan(result.recompute_ns));
  optional_field(object, "swapped_bytes", of_plan(result.swapped_bytes));
  optional_field(object, "step_ns", of_plan(result.step_ns));
  object.field("program_step_ns", result.program_step_ns);
  optional_field(object, "step_bound_ns", result.step_bound_ns);
  object.key("seconds");
  append_seconds(out, result.seconds, seconds);
  object.close();
  return out + "\n";
}

std::string as_text(const PlanResult& result) {
  std::string out(to_string(result.outcome));
  out += "\nprogram order  " + human_bytes(result.program_peak_bytes);
  out += "\npeak           " + human_bytes(result.peak_bytes);
  out += "\nlower bound    " + human_bytes(result.lower_bound_bytes);
  out += "\narena          " + human_bytes(result.plan->arena_bytes);
  out += "\nresident       " + human_bytes(result.resident_bytes);
  if (result.recomputed_ops > 0) out += "\nrecomputed     " + std::to_string(result.recomputed_ops) + " ops";
  if (result.swapped_bytes > 0) out += "\nswapped        " + human_bytes(result.swapped_bytes);
  out += "\nstep           " + std::to_string(result.step_ns) + " ns (program order " +
         std::to_string(result.program_step_ns) + " ns)\n";
  return out;
}

void explain_failure(const PlanResult& result, const PlanOptions& options) {
  const bool proven = options.budget_bytes && *options.budget_bytes < result.budget_bound_bytes;
  std::string message = result.outcome == Outcome::kInfeasible ? "infeasible" : "stopped by a limit without a plan";
  if (options.budget_bytes) {
    message += ": a budget of " + human_bytes(*options.budget_bytes) + (proven ? " cannot be met" : " was not met");
    if (result.budget_bound_bytes > 0) message += "; no plan fits less than " + human_bytes(result.budget_bound_bytes);
    if (result.smallest_bytes > 0) message += "; the smallest budget met is " + human_bytes(result.smallest_bytes);
  }
  std::fprintf(stderr, "stowage: %s\n", message.c_str());
}

void add_method_options(CLI::App& command, PlanOptions& options) {
  static const std::map<std::string, Method> methods = {{"stowage", Method::kStowage}, {"roam", Method::kRoam}};
  command.add_option("--method", options.method, "stowage, or roam: the published system, as a rival; needs HiGHS")
      ->transform(CLI::CheckedTransformer(methods, CLI::ignore_case))
      ->option_text("stowage|roam [stowage]");
  std::string names;
  std::set<std::string> parts;
  for (const RoamPart& part : kRoamParts) {
    names += (names.empty() ? "" : ", ") + std::string(part.name);
    parts.emplace(part.name);
  }
  command
      .add_option_function<std::vector<std::string>>(
          "--roam-without",
          [&options](const std::vector<std::string>& without) {
            for (const RoamPart& part : kRoamParts)
              if (std::find(without.begin(), without.end(), part.name) != without.end())
                options.roam.*part.enabled = false;
          },
          "switch a part of roam off, may be repeated: " + names)
      ->check(CLI::IsMember(parts))
      ->option_text("PART");
  command.add_flag("--roam-multi-stream", options.roam.multi_stream, "model ops of one level as running side by side");
  command.add_option("--roam-node-limit", options.roam.node_limit, "ops of a leaf")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      .add_option("--roam-delay-radius", options.roam.delay_radius,
                  "longest wait of a weight update, as a fraction of the step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--roam-update-ratio", options.roam.update_ratio,
                  "gradients below this times the inputs of their op never wait")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command.add_option("--roam-ilp-iterations", options.roam.ilp_iterations, "simplex iterations of one ILP")
      ->check(CLI::Range(1, 1000000000))
      ->capture_default_str();
  command.add_option("--highs", options.solver_library,
                     "path of libhighs.so.1; else $STOWAGE_HIGHS, else where highspy is installed");
}

int run(const Arguments& arguments) {
  if (arguments.options.keep_order && arguments.options.method == Method::kRoam)
    throw UsageError("--keep-order and --method roam exclude each other");
  if (arguments.output == "-" && arguments.json) throw UsageError("-o - and --json cannot share stdout");
  refuse_overwriting({arguments.graph}, arguments.output);
  const Stopwatch watch;
  Seconds seconds;
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  seconds.load = watch.seconds();
  PlanResult result;
  {
    ProgressLine line("stowage plan");
    PlanOptions options = arguments.options;
    options.progress = line.callback();
    result = stowage::plan(graph, options);
  }
  if (result.plan) save(*result.plan, arguments.output);
  seconds.total = watch.seconds();
  if (arguments.json) print_result(as_json(graph, arguments.options, result, seconds));
  if (!result.plan) {
    explain_failure(result, arguments.options);
    return result.outcome == Outcome::kInfeasible ? kInfeasible : kStopped;
  }
  if (!arguments.json && arguments.output != "-") print_result(as_text(result));
  return kDone;
}

}  // namespace

Verb add_plan(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  PlanOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("plan", "Plan the memory of a graph");
  command->add_option("GRAPH", arguments->graph, "the graph file")->required();
  command->add_option("-o,--output", arguments->output, "the plan file to write; - for stdout")->required();
  add_bytes_option(
      *command, "--budget", [arguments](std::int64_t bytes) { arguments->options.budget_bytes = bytes; },
      "what the device holds: resident buffers and arena together");
  command->add_option("--link-gbps", options.link_gbps, "speed of each swap lane, in 10^9 bytes a second")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag("--keep-order", options.keep_order, "run the ops in program order; only addresses are decided");
  command->add_flag_callback(
      "--no-takeover", [arguments] { arguments->options.takeover = false; },
      "give no result the address of an input that dies there");
  command->add_option("--time-limit", options.time_limit_seconds, "stop after this many seconds; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  add_method_options(*command, options);
  command->add_option("--seed", options.seed, "of every random choice")->capture_default_str();
  command->add_option("--threads", options.threads, "never changes the plan")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace stowage::cli
