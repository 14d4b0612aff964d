// stowage._core: graphs, plans, planning and checking, without torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <variant>

#include "guard.h"
#include "stowage/bytes.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/explain.h"
#include "stowage/graph.h"
#include "stowage/io.h"
#include "stowage/pipeline.h"
#include "stowage/plan.h"
#include "stowage/planner.h"
#include "stowage/report.h"
#include "stowage/sharding.h"
#include "stowage/summary.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::dict as_dict(const std::vector<stowage::Figure>& figures) {
  nb::dict dict;
  for (const auto& [name, value, of_plan] : figures) {
    nb::object object = nb::none();
    if (const auto* text = std::get_if<std::string_view>(&value)) {
      object = nb::str(text->data(), text->size());
    } else if (const auto* whole = std::get_if<std::int64_t>(&value)) {
      object = nb::int_(*whole);
    } else if (const auto* real = std::get_if<double>(&value)) {
      object = nb::float_(*real);
    }
    dict[nb::str(name.data(), name.size())] = object;
  }
  return dict;
}

nb::dict as_dict(const stowage::Summary& summary) {
  nb::dict dict = as_dict(summary.figures);
  dict["seconds"] = as_dict(summary.seconds);
  return dict;
}

struct Planned {
  stowage::PlanResult result;
  nb::dict summary;
};

void choose_method(stowage::PlanOptions& options, const std::string& method,
                   const std::vector<std::string>& roam_without) {
  if (method == "roam") {
    options.method = stowage::Method::kRoam;
  } else if (method != "stowage") {
    throw nb::value_error(("method must be 'stowage' or 'roam', not '" + method + "'").c_str());
  }
  for (const std::string& name : roam_without)
    if (!stowage::switch_off(options.roam, name)) throw nb::value_error(("roam has no part '" + name + "'").c_str());
}

Planned plan(const stowage::Graph& graph, std::optional<std::int64_t> budget_bytes, bool keep_order,
             bool in_place_reuse, double time_limit, std::uint64_t seed, std::optional<double> link_gbps,
             const std::string& method, const std::vector<std::string>& roam_without, const std::string& solver_library,
             std::optional<std::function<void(std::string_view, double)>> progress) {
  stowage::PlanOptions options;
  if (progress) options.progress = std::move(*progress);
  choose_method(options, method, roam_without);
  options.solver_library = solver_library;
  options.budget_bytes = budget_bytes;
  options.keep_order = keep_order;
  options.takeover = in_place_reuse;
  options.time_limit_seconds = time_limit;
  options.seed = seed;
  if (link_gbps) options.link_gbps = *link_gbps;
  Planned planned;
  {
    const nb::gil_scoped_release release;
    planned.result = stowage::plan(graph, options);
  }
  planned.summary = as_dict(stowage::summarize(graph, options, planned.result));
  return planned;
}

// The text, or the JSON.
std::string explain(const stowage::Graph& graph, const std::optional<stowage::Plan>& plan,
                    std::optional<std::int64_t> budget_bytes, std::optional<double> link_gbps, bool prices, int width,
                    bool json) {
  const nb::gil_scoped_release release;
  stowage::ExplainOptions options;
  options.plan.budget_bytes = budget_bytes;
  if (link_gbps) options.plan.link_gbps = *link_gbps;
  options.prices = prices;
  const stowage::Explanation explanation = stowage::explain(graph, plan, options);
  return json ? stowage::to_json(graph, explanation) : stowage::to_text(graph, explanation, width);
}

void report(const std::string& path, const std::optional<stowage::Graph>& graph,
            const std::optional<stowage::Plan>& plan, std::optional<std::int64_t> budget_bytes,
            std::optional<std::int64_t> lower_bound_bytes, std::optional<double> link_gbps,
            const std::string& ledger_json, const std::string& timeline_json) {
  const nb::gil_scoped_release release;
  stowage::ReportInput input;
  if (graph && plan) input.graph = &*graph, input.plan = &*plan;
  input.options = {budget_bytes, lower_bound_bytes, link_gbps.value_or(input.options.link_gbps), ledger_json,
                   timeline_json};
  stowage::save_report(input, path);
}

nb::tuple roam_parts() {
  nb::list names;
  for (const stowage::RoamPart& part : stowage::kRoamParts) names.append(nb::str(part.name.data(), part.name.size()));
  return nb::tuple(names);
}

// What plans depend on, but for the costs. Source lines and module names change when a script is edited, the plan does
// not.
std::string structure_sha256(stowage::Graph graph) {
  graph.name.clear();
  graph.meta.clear();
  for (stowage::Buffer& buffer : graph.buffers) {
    buffer.name.clear();
    buffer.meta.clear();
  }
  for (stowage::Op& op : graph.ops) {
    op.name.clear();
    op.meta.clear();
    op.cost_ns = 0;
  }
  return stowage::sha256_hex(stowage::to_json(graph));
}

void bind_graph(nb::module_& m) {
  nb::class_<stowage::Graph>(m, "Graph", "A training step as buffers and ops: bytes, costs and dependencies.")
      .def_static(
          "load", [](const std::filesystem::path& path) { return stowage::load_graph(path.string()); }, "path"_a,
          "Reads a *.graph.json or *.graph.json.gz file.")
      .def_static(
          "parse", [](std::string_view json, const std::string& name) { return stowage::parse_graph(json, name); },
          "json"_a, "name"_a = "graph", "Reads a graph from the text of its file.")
      .def(
          "save", [](const stowage::Graph& g, const std::filesystem::path& path) { stowage::save(g, path.string()); },
          "path"_a, "Writes the graph; compressed when the name ends in .gz.")
      .def(
          "to_json", [](const stowage::Graph& g) { return stowage::to_json(g); }, "The graph as the text of its file.")
      .def_ro("name", &stowage::Graph::name, "What the graph was called when it was captured.")
      .def_ro("align", &stowage::Graph::align, "Addresses are multiples of so many bytes.")
      .def_ro("sha256", &stowage::Graph::sha256, "Digest of the graph's text.")
      .def_prop_ro("structure_sha256", &structure_sha256, "Digest of the graph without its names, notes and costs.")
      .def_prop_ro(
          "costs_ns",
          [](const stowage::Graph& g) {
            std::vector<std::int64_t> costs;
            for (const stowage::Op& op : g.ops) costs.push_back(op.cost_ns);
            return costs;
          },
          "Nanoseconds of each op, in program order.")
      .def_prop_ro(
          "ops", [](const stowage::Graph& g) { return g.ops.size(); }, "Number of ops.")
      .def_prop_ro(
          "buffers", [](const stowage::Graph& g) { return g.buffers.size(); }, "Number of buffers.")
      .def_prop_ro("resident_bytes", &stowage::resident_bytes,
                   "Bytes of parameters, optimizer state, module buffers and the batch.")
      .def_prop_ro("program_step_ns", &stowage::program_step_ns, "Sum of what all ops cost, in nanoseconds.")
      .def_prop_ro("program_peak_bytes", &stowage::program_peak_bytes,
                   "Peak of the non-resident bytes in program order, each buffer freed after its last use.")
      .def("lower_bound_bytes", &stowage::lower_bound_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Proven: no order of the ops has a smaller peak.")
      .def("__repr__", [](const stowage::Graph& g) {
        return "<stowage.Graph '" + g.name + "': " + std::to_string(g.ops.size()) + " ops, " +
               std::to_string(g.buffers.size()) + " buffers>";
      });
}

void bind_plan(nb::module_& m) {
  nb::class_<stowage::Plan>(m, "Plan", "What runs when, and where each buffer lies.")
      .def_static("load", &stowage::load_plan, "path"_a)
      .def_static(
          "parse", [](std::string_view json, const std::string& name) { return stowage::parse_plan(json, name); },
          "json"_a, "name"_a = "plan")
      .def(
          "save", [](const stowage::Plan& p, const std::string& path) { stowage::save(p, path); }, "path"_a)
      .def("to_json", [](const stowage::Plan& p) { return stowage::to_json(p); })
      .def_ro("arena_bytes", &stowage::Plan::arena_bytes)
      .def_ro("graph_sha256", &stowage::Plan::graph_sha256)
      .def(
          "resident_bytes",
          [](const stowage::Plan& p, const stowage::Graph& graph) { return stowage::staying_bytes(graph, p); },
          "graph"_a, "Sum of the bytes of residents that stay on the device.")
      .def(
          "of_graph",
          [](stowage::Plan p, const stowage::Graph& graph) {
            p.graph_sha256 = graph.sha256;
            return p;
          },
          "graph"_a, "The same plan for a graph that differs in costs and names only.")
      .def_prop_ro("steps", [](const stowage::Plan& p) { return p.steps.size(); }, "Number of steps.");
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // a process may end with plans alive
  m.attr("version") = STOWAGE_VERSION;
  nb::exception<stowage::Error> error(m, "Error");
  error.attr("__doc__") =
      "What stowage cannot do, and why: bad input, a limit, a missing solver. All its errors are of this kind.";
  nb::exception<stowage::InvalidGraph> invalid_graph(m, "InvalidGraph", error.ptr());
  invalid_graph.attr("__doc__") =
      "A graph breaks a rule of its format. The message names the file, the rule and the id.";
  nb::exception<stowage::InvalidPlan> invalid_plan(m, "InvalidPlan", error.ptr());
  invalid_plan.attr("__doc__") = "A plan breaks a rule of its format. The message names the file, the rule and the id.";

  bind_graph(m);
  bind_plan(m);
  bind_guard(m);
  nb::class_<Planned>(m, "Planned")
      .def_prop_ro("plan", [](const Planned& p) { return p.result.plan; })
      .def_prop_ro("outcome", [](const Planned& p) { return std::string(stowage::to_string(p.result.outcome)); })
      .def_prop_ro("smallest_bytes", [](const Planned& p) { return p.result.smallest_bytes; })
      .def_prop_ro("budget_bound_bytes", [](const Planned& p) { return p.result.budget_bound_bytes; })
      .def_ro("summary", &Planned::summary);
  m.def("plan", &plan, "graph"_a, "budget_bytes"_a = nb::none(), "keep_order"_a = false, "in_place_reuse"_a = true,
        "time_limit"_a = 0.0, "seed"_a = 0, "link_gbps"_a = nb::none(), "method"_a = "stowage",
        "roam_without"_a = std::vector<std::string>{}, "solver_library"_a = "", "progress"_a = nb::none());
  m.def("explain", &explain, "graph"_a, "plan"_a = nb::none(), "budget_bytes"_a = nb::none(),
        "link_gbps"_a = nb::none(), "prices"_a = true, "width"_a = 100, "json"_a = false);
  m.def("report", &report, "path"_a, "graph"_a = nb::none(), "plan"_a = nb::none(), "budget_bytes"_a = nb::none(),
        "lower_bound_bytes"_a = nb::none(), "link_gbps"_a = nb::none(), "ledger_json"_a = "", "timeline_json"_a = "");
  m.attr("roam_parts") = roam_parts();
  m.def("check", [](const stowage::Graph& graph, const stowage::Plan& plan) {
    stowage::CheckReport report;
    {
      const nb::gil_scoped_release release;
      report = stowage::check(graph, plan);
    }
    if (!report.valid) throw stowage::InvalidPlan(report.message);
    return report.peak_bytes;
  });
  m.def(
      "plan_sharding",
      [](const std::string& program, const std::string& mesh, const std::string& options) {
        const nb::gil_scoped_release release;
        return stowage::to_json(stowage::plan_sharding(stowage::parse_program(program, "program"),
                                                       stowage::parse_mesh(mesh, "mesh"),
                                                       stowage::parse_sharding_options(options, "options")));
      },
      "program"_a, "mesh"_a, "options"_a = "{}", "JSON texts in and out: docs/formats.md section 5.");
  m.def(
      "plan_pipeline",
      [](const std::string& problem) {
        const nb::gil_scoped_release release;
        const stowage::PipelineProblem parsed = stowage::parse_pipeline(problem, "pipeline");
        const stowage::PipelinePlan plan = stowage::plan_pipeline(parsed);
        if (!plan.stages.empty()) {
          if (const auto report = stowage::check_pipeline(parsed, plan); !report.valid)
            throw stowage::InvalidPlan(report.message);
        }
        return stowage::to_json(plan);
      },
      "problem"_a, "JSON text in and out: docs/formats.md section 5. The plan is checked.");
  m.def(
      "sharding_rules",
      [](const std::string& program) {
        return stowage::sharding_rules_json(stowage::parse_program(program, "program"));
      },
      "program"_a, "How each op of a program may run on parts, as JSON.");
  m.def("parse_bytes", &stowage::parse_bytes, "text"_a);
  m.def(
      "in_words",
      [](std::int64_t bytes, int direction) {
        return stowage::in_words(bytes, static_cast<stowage::Rounding>(direction));
      },
      "bytes"_a, "direction"_a = 0);
}
