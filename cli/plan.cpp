// stowage plan GRAPH -o PLAN: the order and the addresses, within a budget when one is given.
#include "stowage/plan.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <variant>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "stowage/stopwatch.h"
#include "stowage/summary.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct PlanArguments {
  std::string graph;
  std::string output;
  PlanOptions options;
  int threads = 1;  // read by nobody
  bool json = false;
};

// What only a plan has is null when there is none.
void append(io::ObjectWriter& object, const std::vector<Figure>& figures, bool has_plan) {
  for (const auto& [name, value, of_plan] : figures) {
    if (of_plan && !has_plan) {
      object.null(name);
    } else if (const auto* text = std::get_if<std::string_view>(&value)) {
      object.field(name, *text);
    } else if (const auto* whole = std::get_if<std::int64_t>(&value)) {
      object.field(name, *whole);
    } else if (const auto* real = std::get_if<double>(&value)) {
      object.field(name, *real);
    } else {
      object.null(name);
    }
  }
}

std::string as_json(const Summary& summary, bool has_plan) {
  std::string out;
  io::ObjectWriter object(out);
  append(object, summary.figures, has_plan);
  object.key("seconds");
  io::ObjectWriter seconds(out);
  append(seconds, summary.seconds, has_plan);
  seconds.close();
  object.close();
  return out + "\n";
}

std::string as_text(const PlanResult& result) {
  std::string out(to_string(result.outcome));
  out += "\nprogram order  " + words_and_bytes(result.program_peak_bytes);
  out += "\npeak           " + words_and_bytes(result.peak_bytes);
  out += "\nlower bound    " + words_and_bytes(result.lower_bound_bytes);
  out += "\narena          " + words_and_bytes(result.plan->arena_bytes);
  out += "\nresident       " + words_and_bytes(result.resident_bytes);
  if (result.recomputed_ops > 0) out += "\nrecomputed     " + std::to_string(result.recomputed_ops) + " ops";
  if (result.swapped_bytes > 0) out += "\nswapped        " + words_and_bytes(result.swapped_bytes);
  out += "\nstep           " + std::to_string(result.step_ns) + " ns (program order " +
         std::to_string(result.program_step_ns) + " ns)\n";
  return out;
}

void explain_failure(const PlanResult& result, const PlanOptions& options) {
  const bool proven = options.budget_bytes && *options.budget_bytes < result.budget_bound_bytes;
  std::string message = result.outcome == Outcome::kInfeasible ? "infeasible" : "stopped by a limit without a plan";
  if (options.budget_bytes) {
    message += ": a budget of " + words_and_bytes(*options.budget_bytes) + (proven ? " cannot be met" : " was not met");
    if (result.budget_bound_bytes > 0)
      message += "; no plan fits less than " + words_and_bytes(result.budget_bound_bytes);
    if (result.smallest_bytes > 0) message += "; the smallest budget met is " + words_and_bytes(result.smallest_bytes);
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
            for (const std::string& part : without) switch_off(options.roam, part);
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

int run_plan(const PlanArguments& arguments) {
  if (arguments.options.keep_order && arguments.options.method == Method::kRoam)
    throw UsageError("--keep-order and --method roam exclude each other");
  if (arguments.output == "-" && arguments.json) throw UsageError("-o - and --json cannot share stdout");
  refuse_overwriting({arguments.graph}, arguments.output);
  const Stopwatch watch;
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  const double load_seconds = watch.seconds();
  PlanResult result;
  {
    ProgressLine line("stowage plan");
    PlanOptions options = arguments.options;
    options.progress = line.callback();
    result = stowage::plan(graph, options);
  }
  if (result.plan) save(*result.plan, arguments.output);
  result.seconds.load = load_seconds;
  result.seconds.total = watch.seconds();
  if (arguments.json) print_result(as_json(summarize(graph, arguments.options, result), result.plan.has_value()));
  if (!result.plan) {
    explain_failure(result, arguments.options);
    return result.outcome == Outcome::kInfeasible ? kInfeasible : kStopped;
  }
  if (!arguments.json && arguments.output != "-") print_result(as_text(result));
  return kDone;
}

}  // namespace

Verb add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
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
      "--no-takeover,--no-in-place-reuse", [arguments] { arguments->options.takeover = false; },
      "no in-place reuse: give no result the address of an input that dies there");
  command->add_option("--time-limit", options.time_limit_seconds, "stop after this many seconds; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  add_method_options(*command, options);
  command->add_option("--seed", options.seed, "of every random choice")->capture_default_str();
  command->add_option("--threads", arguments->threads, "kept for older scripts; planning uses one thread")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_plan(*arguments); }};
}

}  // namespace stowage::cli
