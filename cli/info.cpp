// stowage info GRAPH: what the graph holds, and what its memory is at program order and at best.
#include <CLI/CLI.hpp>

#include <array>
#include <memory>

#include "progress_line.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "verb.h"

namespace stowage::cli {
namespace {

struct InfoArguments {
  std::string graph;
  bool json = false;
};

struct GraphSummary {
  std::array<std::int64_t, kBufferKindNames.size()> bytes_of_kind{};
  std::int64_t rng_ops = 0;
  std::int64_t effect_ops = 0;
  std::int64_t once_ops = 0;
  std::int64_t cost_ns = 0;
  std::int64_t resident_bytes = 0;
  std::int64_t program_peak_bytes = 0;
  std::int64_t lower_bound_bytes = 0;
};

GraphSummary summarize(const Graph& graph) {
  GraphSummary summary;
  for (const Buffer& buffer : graph.buffers)
    summary.bytes_of_kind[static_cast<std::size_t>(buffer.kind)] += buffer.bytes;
  for (const Op& op : graph.ops) {
    summary.rng_ops += op.rng;
    summary.effect_ops += op.effect;
    summary.once_ops += op.once;
  }
  summary.cost_ns = program_step_ns(graph);
  summary.resident_bytes = resident_bytes(graph);
  summary.program_peak_bytes = program_peak_bytes(graph);
  summary.lower_bound_bytes = lower_bound_bytes(graph);
  return summary;
}

std::string as_json(const Graph& graph, const GraphSummary& summary) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("name", graph.name);
  object.field("ops", graph.ops.size());
  object.field("buffers", graph.buffers.size());
  object.field("align", graph.align);
  object.key("bytes_by_kind");
  io::ObjectWriter kinds(out);
  for (std::size_t kind = 0; kind < kBufferKindNames.size(); ++kind) {
    kinds.field(kBufferKindNames[kind], summary.bytes_of_kind[kind]);
  }
  kinds.close();
  object.field("resident_bytes", summary.resident_bytes);
  object.field("program_peak_bytes", summary.program_peak_bytes);
  object.field("lower_bound_bytes", summary.lower_bound_bytes);
  object.field("rng_ops", summary.rng_ops);
  object.field("effect_ops", summary.effect_ops);
  object.field("once_ops", summary.once_ops);
  object.field("cost_ns", summary.cost_ns);
  object.field("sha256", graph.sha256);
  object.close();
  return out + "\n";
}

std::string as_text(const Graph& graph, const GraphSummary& summary) {
  std::string out = "graph              " + graph.name + "\nops                " + std::to_string(graph.ops.size()) +
                    "\nbuffers            " + std::to_string(graph.buffers.size()) + "\n";
  for (std::size_t kind = 0; kind < kBufferKindNames.size(); ++kind) {
    if (summary.bytes_of_kind[kind] == 0) continue;
    std::string name(kBufferKindNames[kind]);
    name.resize(17, ' ');
    out += "  " + name + words_and_bytes(summary.bytes_of_kind[kind]) + "\n";
  }
  out += "resident           " + words_and_bytes(summary.resident_bytes) + "\n";
  out += "program order      " + words_and_bytes(summary.program_peak_bytes) + "\n";
  out += "lower bound        " + words_and_bytes(summary.lower_bound_bytes) + "\n";
  out += "align              " + std::to_string(graph.align) + "\n";
  out += "random ops         " + std::to_string(summary.rng_ops) + "\n";
  out += "effect ops         " + std::to_string(summary.effect_ops) + "\n";
  out += "ops that run once  " + std::to_string(summary.once_ops) + "\n";
  out += "run time           " + std::to_string(summary.cost_ns) + " ns\n";
  return out;
}

int run_info(const InfoArguments& arguments) {
  const Graph graph = read_input([&] { return load_graph(arguments.graph); });
  const GraphSummary summary = [&] {
    const ProgressLine line("stowage info");
    return summarize(graph);
  }();
  print_result(arguments.json ? as_json(graph, summary) : as_text(graph, summary));
  return kDone;
}

}  // namespace

Verb add_info(CLI::App& app) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* command = app.add_subcommand("info", "Show what a graph holds");
  command->add_option("GRAPH", arguments->graph, "the graph file")->required();
  command->add_flag("--json", arguments->json, "print one JSON object");
  return {command, [arguments] { return run_info(*arguments); }};
}

}  // namespace stowage::cli
