// A plan's result in figures, by the names of docs/formats.md section 3: `stowage plan --json` prints them,
// Plan.summary() of Python returns them.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "stowage/graph.h"
#include "stowage/planner.h"

namespace stowage {

struct Figure {
  std::string_view name;                                                       // a constant
  std::variant<std::monostate, std::string_view, std::int64_t, double> value;  // monostate: null
  bool of_plan = false;                                                        // says nothing when there is no plan
};

struct Summary {
  std::vector<Figure> figures;  // in the order in which they are printed
  std::vector<Figure> seconds;  // the last of them, an object: one for each phase
};

// `result` is that of plan(graph, options).
Summary summarize(const Graph& graph, const PlanOptions& options, const PlanResult& result);

}  // namespace stowage
