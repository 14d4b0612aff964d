// rivals order GRAPH, rivals model GRAPH, rivals checkmate GRAPH BYTES, rivals layout INTERVALS.csv: what others make
// of the same input, as one JSON object on stdout. rivals intervals KIND COUNT SEED: a layout problem, as CSV. rivals away GRAPH
// GBPS: a graph.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "planner/away_graph.h"
#include "rivals/caching_allocator.h"
#include "rivals/checkmate_milp.h"
#include "rivals/evaluate.h"
#include "rivals/greedy_fit.h"
#include "rivals/inductor_orders.h"
#include "rivals/layout_kinds.h"
#include "rivals/lescea.h"
#include "rivals/llfb.h"
#include "rivals/model_ilp.h"
#include "stowage/bytes.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "stowage/json.h"
#include "stowage/planner.h"
#include "stowage/stopwatch.h"

namespace stowage::rivals {
namespace {

template <class Value>
struct Timed {
  Value value;
  double seconds = 0;  // the median of three when it is short
};

template <class Work>
auto timed(const Work& work) {
  constexpr double kShort = 0.5;
  std::vector<double> seconds;
  while (true) {
    const Stopwatch watch;
    auto value = work();
    seconds.push_back(watch.seconds());
    if (seconds[0] < kShort && seconds.size() < 3) continue;
    std::sort(seconds.begin(), seconds.end());
    return Timed<decltype(value)>{std::move(value), seconds[seconds.size() / 2]};
  }
}

void write_program(io::ObjectWriter& out, const Graph& graph, std::string& text) {
  std::vector<OpId> order;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) order.emplace_back(i);
  const auto [peaks, seconds] = timed([&] { return caching_allocator_peaks(graph, order); });
  out.key("program");
  io::ObjectWriter object(text);
  object.field("peak_bytes", evaluate_peak(graph, order));
  object.field("allocated_bytes", peaks.allocated_bytes);
  object.field("reserved_bytes", peaks.reserved_bytes);
  object.field("seconds", seconds);
  object.close();
}

void write_lescea_llfb(io::ObjectWriter& out, const Graph& graph, std::string& text) {
  const auto [result, seconds] = timed([&] { return evaluate(graph, lescea_order(graph), llfb_layout); });
  out.key("lescea_llfb");
  io::ObjectWriter object(text);
  object.field("peak_bytes", result.peak_bytes);
  object.field("arena_bytes", result.arena_bytes);
  object.field("seconds", seconds);
  object.close();
}

void write_inductor(io::ObjectWriter& out, const Graph& graph, std::string& text) {
  using Rule = std::vector<OpId> (*)(const Graph&);
  constexpr std::array<std::pair<std::string_view, Rule>, 3> rules = {
      {{"lpmf", lpmf_order}, {"bfs", bfs_order}, {"dfs", dfs_order}}};
  std::int64_t best_peak = program_peak_bytes(graph);
  std::vector<OpId> best;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) best.emplace_back(i);
  std::string_view best_name = "program";
  double seconds = 0;
  out.key("inductor");
  io::ObjectWriter object(text);
  for (const auto& [name, rule] : rules) {
    auto order = timed([&] { return rule(graph); });
    seconds += order.seconds;
    const std::int64_t peak = evaluate_peak(graph, order.value);
    object.field(std::string(name) + "_peak_bytes", peak);
    if (peak < best_peak) best_peak = peak, best = std::move(order.value), best_name = name;
  }
  object.field("best", best_name);
  object.field("peak_bytes", best_peak);
  object.field("reserved_bytes", caching_allocator_peaks(graph, best).reserved_bytes);
  object.field("seconds", seconds);
  object.close();
}

std::string orders(const std::string& path) {
  const Graph graph = load_graph(path);
  std::string text;
  io::ObjectWriter out(text);
  write_program(out, graph, text);
  write_lescea_llfb(out, graph, text);
  write_inductor(out, graph, text);
  out.close();
  return text + "\n";
}

void write_layout(io::ObjectWriter& out, std::string& text, const std::string& name,
                  const std::vector<LayoutItem>& items, const LayoutRule& rule) {
  const auto [offsets, seconds] = timed([&] { return rule(items, 1); });
  out.key(name);
  io::ObjectWriter object(text);
  object.field("height_bytes", height(items, offsets));
  object.field("seconds", seconds);
  object.close();
}

std::string layouts(const std::string& path) {
  const IntervalsFile file = load_intervals(path);
  std::string text;
  io::ObjectWriter out(text);
  constexpr std::size_t kPlain = 25'000;  // items; LLFB and the plain greedies are quadratic
  const bool many = file.items.size() > kPlain;
  if (!many) write_layout(out, text, "llfb", file.items, llfb_layout);
  for (std::size_t serve = 0; serve < kServeNames.size(); ++serve)
    for (std::size_t fit = 0; fit < kFitNames.size(); ++fit) {
      const std::string name = std::string(kServeNames[serve]) + "_" + std::string(kFitNames[fit]);
      write_layout(out, text, name, file.items, [&](const std::vector<LayoutItem>& items, std::int64_t align) {
        return (many ? greedy_layout_of_many : greedy_layout)(items, align, static_cast<Serve>(serve),
                                                              static_cast<Fit>(fit));
      });
    }
  out.close();
  return text + "\n";
}

std::string intervals(const std::string& kind, std::size_t count, std::uint64_t seed) {
  const auto at = std::find(std::begin(kLayoutKindNames), std::end(kLayoutKindNames), kind);
  if (at == std::end(kLayoutKindNames)) throw Error("there is no kind '" + kind + "' of intervals");
  std::string text = "id,lower,upper,size\n";
  std::size_t id = 0;
  for (const LayoutItem& item : layout_of_kind(static_cast<LayoutKind>(at - std::begin(kLayoutKindNames)), count, seed))
    text += std::to_string(id++) + "," + std::to_string(item.lower) + "," + std::to_string(item.upper) + "," +
            std::to_string(item.bytes) + "\n";
  return text;
}

void write_stage(io::ObjectWriter& out, std::string& text, std::string_view name, const ModelStage& stage) {
  out.key(name);
  io::ObjectWriter object(text);
  object.field("outcome", to_string(stage.outcome));
  object.field("bound_bytes", stage.bound_bytes);
  object.field("seconds", stage.seconds);
  object.close();
}

std::string model(const std::string& path, const ModelOptions& options) {
  const ModelResult result = model_ilp(load_graph(path), options);
  std::string text;
  io::ObjectWriter out(text);
  out.field("model_peak_bytes", result.model_peak_bytes);
  out.field("peak_bytes", result.peak_bytes);
  out.field("arena_bytes", result.arena_bytes);
  write_stage(out, text, "order", result.order_stage);
  write_stage(out, text, "layout", result.layout_stage);
  out.close();
  return text + "\n";
}

std::vector<OpId> runs_of(const Plan& plan) {
  std::vector<OpId> runs;
  for (const Step& step : plan.steps)
    if (step.kind == Step::Kind::kRun) runs.push_back(step.op);
  return runs;
}

std::vector<OpId> first_runs(const Graph& graph, const std::vector<OpId>& runs) {
  std::vector<OpId> order;
  std::vector<char> ran(graph.ops.size(), 0);
  for (const OpId op : runs)
    if (!std::exchange(ran.at(op.index()), 1)) order.push_back(op);
  return order;
}

std::string checkmate(const std::string& path, const std::string& plan, CheckmateOptions options) {
  const Graph graph = load_graph(path);
  if (!plan.empty()) {
    options.start = runs_of(load_plan(plan));
    options.order = first_runs(graph, options.start);
  }
  const CheckmateResult result = checkmate_milp(graph, options);
  std::string text;
  io::ObjectWriter out(text);
  out.field("outcome", to_string(result.outcome));
  if (result.runs.empty()) {
    for (const char* name : {"step_ns", "peak_bytes", "arena_bytes", "recomputed_ops"}) out.null(name);
  } else {
    out.field("step_ns", result.step_ns);
    out.field("peak_bytes", result.peak_bytes);
    out.field("arena_bytes", result.arena_bytes);
    out.field("recomputed_ops", result.runs.size() - graph.ops.size());
  }
  out.field("bound_ns", result.bound_ns);
  out.field("nodes", result.nodes);
  out.field("columns", result.columns);
  out.field("rows", result.rows);
  out.field("seconds", result.seconds);
  out.key("runs");
  for (std::size_t i = 0; i < result.runs.size(); ++i)
    text += (i == 0 ? '[' : ',') + std::to_string(result.runs[i].value);
  text += result.runs.empty() ? "[]" : "]";
  out.close();
  return text + "\n";
}

// The graph in which all residents that may leave do so: each is made by an op that fetches it.
std::string away(const std::string& path, double link_gbps) {
  const Graph graph = load_graph(path);
  IdVector<BufferId, char> touched(graph.buffers.size(), 0);
  for (const Op& op : graph.ops)
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list) touched[b] = 1;
  std::vector<BufferId> leave;
  for (std::size_t i = 0; i < graph.buffers.size(); ++i)
    if (graph.buffers[i].leaves && touched[BufferId(i)] != 0) leave.emplace_back(i);
  return to_json(send_away(graph, leave, {link_gbps}).graph);
}

int run(int argc, char** argv) {
  CLI::App app("What others make of the same graph or intervals");
  app.require_subcommand(1);
  std::string path;
  CLI::App* order =
      app.add_subcommand("order",
                         "orders of a graph: program order with a model of PyTorch's allocator, LESCEA + LLFB, "
                         "Inductor's");
  order->add_option("GRAPH", path)->required();
  CLI::App* layout = app.add_subcommand("layout", "greedy layouts of fixed intervals");
  layout->add_option("INTERVALS.csv", path)->required();
  std::string kind;
  std::size_t count = 0;
  std::uint64_t seed = 0;
  CLI::App* made = app.add_subcommand("intervals", "a layout problem of a kind that layout_kinds.h names, as CSV");
  made->add_option("KIND", kind)->required();
  made->add_option("COUNT", count)->required();
  made->add_option("SEED", seed)->required();
  ModelOptions options;
  bool single_stream = false;
  CLI::App* ilp = app.add_subcommand("model", "the MODeL ILPs, order then layout, through HiGHS");
  ilp->add_option("GRAPH", path)->required();
  ilp->add_option("--seconds", options.seconds, "limit of each stage; 0: none")->capture_default_str();
  ilp->add_option("--iterations", options.iterations, "simplex iterations of each stage; 0: any number")
      ->capture_default_str();
  ilp->add_flag("--single-stream", single_stream, "a total order, instead of levels that ops share");
  CheckmateOptions limits;
  std::string budget, plan;
  CLI::App* milp = app.add_subcommand(
      "checkmate", "Checkmate's MILP through HiGHS: recomputation within a byte limit, in a fixed order");
  milp->add_option("GRAPH", path)->required();
  milp->add_option("BYTES", budget, "residents and live bytes")->required();
  milp->add_option("--order", plan, "a plan: the order of its first runs, and a start; default: program order");
  milp->add_option("--seconds", limits.seconds, "0: none")->capture_default_str();
  milp->add_option("--nodes", limits.nodes, "of branch and bound")->capture_default_str();
  milp->add_option("--iterations", limits.iterations, "of the simplex method; 0: any number")->capture_default_str();
  milp->add_option("--gap", limits.relative_gap, "stop when proven to be this close, relative")->capture_default_str();
  double link_gbps = 0;
  CLI::App* sent = app.add_subcommand("away", "the graph in which all residents that may leave do so");
  sent->add_option("GRAPH", path)->required();
  sent->add_option("GBPS", link_gbps, "what a fetch copies, in 10^9 bytes a second")
      ->required()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  options.multi_stream = !single_stream;
  if (milp->parsed()) limits.budget_bytes = parse_bytes(budget);
  std::fputs((order->parsed()  ? orders(path)
              : ilp->parsed()  ? model(path, options)
              : made->parsed() ? intervals(kind, count, seed)
              : milp->parsed() ? checkmate(path, plan, limits)
              : sent->parsed() ? away(path, link_gbps)
                               : layouts(path))
                 .c_str(),
             stdout);
  return 0;
}

}  // namespace
}  // namespace stowage::rivals

int main(int argc, char** argv) {
  try {
    return stowage::rivals::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rivals: %s\n", error.what());
    return 3;
  }
}
