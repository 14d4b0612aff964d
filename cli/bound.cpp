// stowage bound GRAPH: the proven lower bound on the peak, beside the peak of program order.
#include <CLI/CLI.hpp>

#include <memory>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "stowage/stopwatch.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct BoundArguments {
  std::string graph;
  bool json = false;
};

int run_bound(const BoundArguments& arguments) {
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  const Stopwatch watch;
  const std::int64_t bound = [&] {
    const ProgressLine line("stowage bound");
    return lower_bound_bytes(graph);
  }();
  const double seconds = watch.seconds();
  const std::int64_t program_peak = program_peak_bytes(graph);
  const std::int64_t resident = resident_bytes(graph);
  std::string out;
  if (arguments.json) {
    io::ObjectWriter object(out);
    object.field("lower_bound_bytes", bound);
    object.field("program_peak_bytes", program_peak);
    object.field("resident_bytes", resident);
    object.field("seconds", seconds);
    object.close();
    out += '\n';
  } else {
    out = "lower bound    " + words_and_bytes(bound) + "\nprogram order  " + words_and_bytes(program_peak) +
          "\nresident       " + words_and_bytes(resident) + "\n";
  }
  print_result(out);
  return kDone;
}

}  // namespace

Verb add_bound(CLI::App& app) {
  auto arguments = std::make_shared<BoundArguments>();
  CLI::App* command = app.add_subcommand("bound", "Prove a lower bound on the peak of every order");
  command->add_option("GRAPH", arguments->graph, "the graph file")->required();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_bound(*arguments); }};
}

}  // namespace stowage::cli
