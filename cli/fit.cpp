// stowage fit GRAPH... --budget BYTES: the largest of one step's graphs, at growing batch sizes, that a budget holds.
//
// What a step needs grows with its batch, so the answer is found by bisection:
//
//     GRAPH    b1   b2   b4   b8   b16   b32
//     fits     yes  .    yes  yes  no    .        fits(b8) and not fits(b16): the answer is b8
//
// Its right neighbour has always been planned, or does not exist. A plan is a few of these steps, so O(log n) plans are
// made.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "stowage/stopwatch.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct FitArguments {
  std::vector<std::string> graphs;
  PlanOptions options;
  bool json = false;
};

struct Trial {
  std::string path;
  PlanResult result;
  double seconds = 0;
  [[nodiscard]] bool fits() const { return result.plan.has_value(); }
};

// By position among the graphs.
using Trials = std::map<std::size_t, Trial>;

std::int64_t all_bytes(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : graph.buffers) sum += buffer.bytes;
  return sum;
}

std::vector<Graph> load_growing(const std::vector<std::string>& paths) {
  std::vector<Graph> graphs;
  for (const std::string& path : paths) {
    graphs.push_back(read_input([&] { return load_graph(path); }));
    if (graphs.size() > 1 && all_bytes(graphs.back()) < all_bytes(graphs[graphs.size() - 2])) {
      throw BadInput(path + ": has smaller buffers than " + paths[graphs.size() - 2] +
                     " before it: name the graphs by growing batch size");
    }
  }
  return graphs;
}

// The largest position that fits, or nothing. Plans it and its right neighbour, and what the bisection meets.
std::optional<std::size_t> bisect(const std::vector<Graph>& graphs, const FitArguments& arguments, Trials& trials) {
  ProgressLine line("stowage fit");
  const auto fits = [&](std::size_t i) {
    line.phase("planning " + arguments.graphs[i]);
    const Stopwatch watch;
    Trial trial{arguments.graphs[i], stowage::plan(graphs[i], arguments.options), 0};
    trial.seconds = watch.seconds();
    return trials.emplace(i, std::move(trial)).first->second.fits();
  };
  std::size_t low = 0, high = graphs.size();  // all below low fit; high does not
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (fits(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low == 0 ? std::nullopt : std::optional(low - 1);
}

double slowdown(const PlanResult& result) {
  return result.program_step_ns == 0
             ? 1.0
             : static_cast<double>(result.step_ns) / static_cast<double>(result.program_step_ns);
}

void append_trial(std::string& out, const Trial& trial) {
  const PlanResult& result = trial.result;
  io::ObjectWriter object(out);
  object.field("graph", trial.path);
  object.field("outcome", to_string(result.outcome));
  object.field("resident_bytes", result.resident_bytes);
  object.field("program_peak_bytes", result.program_peak_bytes);
  object.field("program_step_ns", result.program_step_ns);
  if (trial.fits()) {
    object.field("arena_bytes", result.plan->arena_bytes);
    object.field("recomputed_ops", result.recomputed_ops);
    object.field("swapped_bytes", result.swapped_bytes);
    object.field("step_ns", result.step_ns);
    object.field("slowdown", slowdown(result));
    object.null("smallest_bytes");
  } else {
    for (const char* name : {"arena_bytes", "recomputed_ops", "swapped_bytes", "step_ns", "slowdown"})
      object.null(name);
    object.field("smallest_bytes", result.smallest_bytes);
  }
  object.field("seconds", trial.seconds);
  object.close();
}

std::string as_json(const FitArguments& arguments, const Trials& trials, std::optional<std::size_t> best) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("budget_bytes", *arguments.options.budget_bytes);
  object.field("index", best);
  object.field("graph", best ? std::optional(arguments.graphs[*best]) : std::nullopt);
  object.key("tried");
  out += '[';
  for (auto trial = trials.begin(); trial != trials.end(); ++trial) {
    if (trial != trials.begin()) out += ',';
    append_trial(out, trial->second);
  }
  out += ']';
  object.close();
  return out + "\n";
}

std::string as_text(const FitArguments& arguments, const Trials& trials, std::size_t best) {
  const PlanResult& result = trials.at(best).result;
  char factor[32];
  std::snprintf(factor, sizeof factor, "%.3f", slowdown(result));
  std::string out = arguments.graphs[best] + "\narena      " + words_and_bytes(result.plan->arena_bytes) +
                    "\nresident   " + words_and_bytes(result.resident_bytes) + "\nbudget     " +
                    words_and_bytes(*arguments.options.budget_bytes) + "\nstep       " +
                    std::to_string(result.step_ns) + " ns, " + factor + " of the step without a limit\n";
  const auto next = trials.find(best + 1);
  if (next == trials.end()) return out + "the largest graph named fits\n";
  const bool proven = next->second.result.outcome == Outcome::kInfeasible;
  return out + "next       " + next->second.path + (proven ? " cannot fit" : " was not made to fit") +
         "; it was planned in " + words_and_bytes(next->second.result.smallest_bytes) + "\n";
}

int explain_failure(const FitArguments& arguments, const Trial& smallest) {
  const bool proven = smallest.result.outcome == Outcome::kInfeasible;
  std::fprintf(stderr, "stowage: %s: %s does not fit a budget of %s; it was planned in %s\n",
               proven ? "infeasible" : "stopped by a limit without a plan", smallest.path.c_str(),
               words_and_bytes(*arguments.options.budget_bytes).c_str(),
               words_and_bytes(smallest.result.smallest_bytes).c_str());
  return proven ? kInfeasible : kStopped;
}

int run_fit(const FitArguments& arguments) {
  if (std::count(arguments.graphs.begin(), arguments.graphs.end(), "-") > 1)
    throw UsageError("only one GRAPH can be standard input");
  const std::vector<Graph> graphs = load_growing(arguments.graphs);
  Trials trials;
  const std::optional<std::size_t> best = bisect(graphs, arguments, trials);
  if (arguments.json) print_result(as_json(arguments, trials, best));
  if (!best) return explain_failure(arguments, trials.begin()->second);
  if (!arguments.json) print_result(as_text(arguments, trials, *best));
  return kDone;
}

}  // namespace

Verb add_fit(CLI::App& app) {
  auto arguments = std::make_shared<FitArguments>();
  PlanOptions& options = arguments->options;
  CLI::App* command =
      app.add_subcommand("fit",
                         "Find the largest of growing graphs of one step that a budget holds. Where the "
                         "Python package is installed, stowage fit --model-from FILE.py:FUNCTION "
                         "--device BYTES predicts a step that was never run");
  command->add_option("GRAPH", arguments->graphs, "the graph files, by growing batch size")->required();
  add_bytes_option(
      *command, "--budget", [arguments](std::int64_t bytes) { arguments->options.budget_bytes = bytes; },
      "what the device holds: resident buffers and arena together");
  command->get_option("--budget")->required();
  command->add_option("--link-gbps", options.link_gbps, "speed of each swap lane, in 10^9 bytes a second")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--time-limit", options.time_limit_seconds, "stop each plan after this many seconds; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command->add_option("--seed", options.seed, "of every random choice")->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_fit(*arguments); }};
}

}  // namespace stowage::cli
