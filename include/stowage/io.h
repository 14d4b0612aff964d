// Files. Readers reject what breaks a rule with one line that names the file, the rule and the id; writers are atomic:
// a failed write leaves the old file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stowage/graph.h"
#include "stowage/layout.h"
#include "stowage/pipeline.h"
#include "stowage/plan.h"
#include "stowage/sharding.h"
#include "stowage/strategy.h"

namespace stowage {

// `name` stands for the source in messages. The text is uncompressed JSON; graph.sha256 is its digest.
// Throws InvalidGraph / InvalidPlan.
Graph parse_graph(std::string_view json, const std::string& name);
Plan parse_plan(std::string_view json, const std::string& name);

// Canonical JSON: the same value gives the same bytes.
std::string to_json(const Graph& graph);
std::string to_json(const Plan& plan);

// Sets graph.sha256 to the digest of to_json(graph).
void seal(Graph& graph);

// "-" is stdin (load) or stdout (save). Compressed by gzip when the name ends in ".gz". Throw Error when the file
// cannot be opened, read or written.
Graph load_graph(const std::string& path);
Plan load_plan(const std::string& path);
void save(const Graph& graph, const std::string& path);
void save(const Plan& plan, const std::string& path);

// The text of any file, uncompressed. Throws Error.
std::string load_text(const std::string& path);

// The intervals CSV: `id,lower,upper,size`, columns in any order, upper exclusive.
struct IntervalsFile {
  std::vector<std::string> ids;
  std::vector<LayoutItem> items;
};
IntervalsFile parse_intervals(std::string_view csv, const std::string& name);  // throws InvalidLayout
IntervalsFile load_intervals(const std::string& path);
void save_intervals(const IntervalsFile& file, const std::vector<std::int64_t>& offsets, const std::string& path);

// A strategy problem: the JSON of the contest on intra-operator parallelism (google/iopddl). Throws Error.
StrategyProblem parse_strategy_problem(std::string_view json, const std::string& name);
StrategyProblem load_strategy_problem(const std::string& path);
// {"strategies": [one index per node], "cost", "bound", "gap", "seconds"}
void save(const StrategyResult& result, double seconds, const std::string& path);

// A step for sharding, the mesh, the options: docs/formats.md section 5. Throw Error.
TensorProgram parse_program(std::string_view json, const std::string& name);
Mesh parse_mesh(std::string_view json, const std::string& name);
ShardingOptions parse_sharding_options(std::string_view json, const std::string& name);
MeshPlacement parse_placement(std::string_view text);  // "S0,R"; throws Error naming the text
std::string to_text(const MeshPlacement& placement);
std::string to_json(const ShardingPlan& plan);
// How each op may run on parts; one entry for each element of list ops
std::string sharding_rules_json(const TensorProgram& program);

// A pipeline: docs/formats.md section 5. Throws Error.
PipelineProblem parse_pipeline(std::string_view json, const std::string& name);
std::string to_json(const PipelinePlan& plan);

std::string sha256_hex(std::string_view bytes);

}  // namespace stowage
