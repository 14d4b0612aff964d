// Reads a strategy problem: the JSON of the contest on intra-operator parallelism (google/iopddl), `{"problem":
// {"name", "nodes": {"intervals", "costs", "usages"}, "edges": {"nodes", "costs"}, "usage_limit"}}`. One pass, then
// what holds between lists. O(size of the text).
#include <array>
#include <limits>

#include "base/concat.h"
#include "base/limits.h"
#include "io/json_reader.h"
#include "io/text_file.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "stowage/json.h"

namespace stowage {
namespace {

using io::FormatError;
using io::JsonReader;
using io::Where;
using Value = JsonReader::Value;
using Lists = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kMaxCost = std::numeric_limits<std::int64_t>::max();

class StrategyReader {
 public:
  explicit StrategyReader(std::string_view text) : json_(text) {}

  StrategyProblem run() {
    constexpr std::array<std::string_view, 1> keys = {"problem"};
    const auto seen = json_.read_object(json_.root(), {}, keys, [&](std::size_t, Value value) { read_problem(value); });
    JsonReader::require_first(1, seen, {}, keys);
    json_.finish();
    assemble();
    return std::move(problem_);
  }

 private:
  void read_problem(Value value) {
    const Where where = Where{}.in_field("problem");
    constexpr std::array<std::string_view, 4> keys = {"nodes", "edges", "name", "usage_limit"};
    const auto seen =
        json_.read_object(JsonReader::to_object(value, where), where, keys, [&](std::size_t key, Value member) {
          const Where at = Where{}.in_field(keys[key]);
          switch (key) {
            case 0: read_nodes(member, at); break;
            case 1: read_edges(member, at); break;
            case 2: problem_.name = JsonReader::read_string(member, at); break;
            default: problem_.usage_limit = JsonReader::read_int(member, at, 0, kMaxExact); break;
          }
        });
    JsonReader::require_first(2, seen, where, keys);
  }

  void read_nodes(Value value, const Where& where) {
    constexpr std::array<std::string_view, 3> keys = {"intervals", "costs", "usages"};
    const auto seen =
        json_.read_object(JsonReader::to_object(value, where), where, keys, [&](std::size_t key, Value member) {
          Lists& lists = key == 0 ? intervals_ : key == 1 ? costs_ : usages_;
          read_lists(member, Where{}.in_field(keys[key]), key == 1 ? kMaxCost : kMaxExact, lists);
        });
    JsonReader::require_first(3, seen, where, keys);
  }

  void read_edges(Value value, const Where& where) {
    constexpr std::array<std::string_view, 2> keys = {"nodes", "costs"};
    const auto seen =
        json_.read_object(JsonReader::to_object(value, where), where, keys, [&](std::size_t key, Value member) {
          const Where at = Where{}.in_field(key == 0 ? "edges.nodes" : "edges.costs");
          read_lists(member, at, key == 0 ? std::numeric_limits<std::int32_t>::max() : kMaxCost,
                     key == 0 ? ends_ : edge_costs_);
        });
    JsonReader::require_first(2, seen, where, keys);
  }

  void read_lists(Value value, const Where& where, std::int64_t high, Lists& lists) {
    json_.read_list(value, where, [&](std::int64_t id, Value entry) {
      std::vector<std::int64_t>& list = lists.emplace_back();
      const Where at = where.at(id);
      json_.read_list(entry, at,
                      [&](std::int64_t, Value number) { list.push_back(JsonReader::read_int(number, at, 0, high)); });
    });
  }

  void assemble() {
    const std::size_t n = intervals_.size();
    if (costs_.size() != n || usages_.size() != n) {
      throw FormatError(
          concat("nodes: ", n, " intervals, ", costs_.size(), " lists of costs and ", usages_.size(), " of usages"));
    }
    for (std::size_t i = 0; i < n; ++i) add_node(i);
    if (ends_.size() != edge_costs_.size()) {
      throw FormatError(concat("edges: ", ends_.size(), " pairs of nodes and ", edge_costs_.size(), " lists of costs"));
    }
    for (std::size_t e = 0; e < ends_.size(); ++e) add_edge(e);
    try {
      validate(problem_);
    } catch (const Error& error) {
      throw FormatError(error.what());
    }
  }

  void add_node(std::size_t i) {
    if (intervals_[i].size() != 2) throw FormatError(concat("node ", i, ": its interval must be a pair"));
    if (costs_[i].empty()) throw FormatError(concat("node ", i, ": has no strategy"));
    if (costs_[i].size() != usages_[i].size()) {
      throw FormatError(concat("node ", i, ": ", costs_[i].size(), " costs but ", usages_[i].size(), " usages"));
    }
    problem_.nodes.push_back({intervals_[i][0], intervals_[i][1], std::move(costs_[i]), std::move(usages_[i])});
  }

  void add_edge(std::size_t e) {
    const auto& ends = ends_[e];
    const auto n = static_cast<std::int64_t>(problem_.nodes.size());
    if (ends.size() != 2) throw FormatError(concat("edge ", e, ": must join two nodes"));
    for (const std::int64_t end : ends) {
      if (end >= n) throw FormatError(concat("edge ", e, ": there is no node ", end));
    }
    if (ends[0] == ends[1]) throw FormatError(concat("edge ", e, ": joins node ", ends[0], " with itself"));
    const std::size_t pairs = problem_.nodes[static_cast<std::size_t>(ends[0])].costs.size() *
                              problem_.nodes[static_cast<std::size_t>(ends[1])].costs.size();
    if (edge_costs_[e].size() != pairs) {
      throw FormatError(concat("edge ", e, ": ", edge_costs_[e].size(), " costs where its nodes have ", pairs,
                               " pairs of strategies"));
    }
    problem_.edges.push_back(
        {static_cast<std::int32_t>(ends[0]), static_cast<std::int32_t>(ends[1]), std::move(edge_costs_[e])});
  }

  JsonReader json_;
  StrategyProblem problem_;
  Lists intervals_, costs_, usages_, ends_, edge_costs_;
};

}  // namespace

StrategyProblem parse_strategy_problem(std::string_view json, const std::string& name) {
  try {
    return StrategyReader(json).run();
  } catch (const FormatError& error) {
    throw Error(concat(name, ": ", error.what()));
  }
}

StrategyProblem load_strategy_problem(const std::string& path) {
  return parse_strategy_problem(io::read_text(path), io::display_name(path));
}

void save(const StrategyResult& result, double seconds, const std::string& path) {
  std::string out;
  io::ObjectWriter object(out);
  object.key("strategies");
  for (std::size_t i = 0; i < result.strategies.size(); ++i) {
    out += i == 0 ? '[' : ',';
    io::append_int(out, result.strategies[i]);
  }
  out += result.strategies.empty() ? "[]" : "]";
  object.field("cost", result.cost);
  object.field("bound", result.bound);
  object.field("gap", result.gap());
  object.field("seconds", seconds);
  object.close();
  io::write_text(path, out + "\n");
}

}  // namespace stowage
