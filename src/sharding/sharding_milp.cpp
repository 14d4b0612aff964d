#include "sharding/sharding_milp.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace stowage {
namespace {

// Times enter in microseconds and bytes as parts of the budget, so that the solver's tolerances mean the same in both.
constexpr double kNsPerUnit = 1e3;

class ShardingMilp {
 public:
  ShardingMilp(const Space& space, const ShardingOptions& options, const MilpRequest& request)
      : space_(space), options_(options), request_(request), axes_(space.mesh.axes.size()) {}

  MilpAnswer run() {
    add_homes();
    add_units();
    for (const SpaceEdge& edge : space_.edges)
      if (!request_.bytes_only || edge.pinned || edge.charged > 0) add_edge(edge);  // the others cost time alone
    add_budget();
    MilpOptions milp;
    milp.relative_gap = request_.bytes_only ? 0 : options_.relative_gap;
    if (request_.bytes_only) milp.absolute_gap = 0.5 / kNsPerUnit;  // bytes are whole
    milp.iteration_limit = options_.iteration_limit;
    milp.time_limit_seconds = request_.seconds;
    milp.seed = options_.seed;
    milp.library = options_.solver_library;
    const MilpResult found = solve(problem_, milp);
    MilpAnswer answer{.outcome = found.outcome, .choice = {}, .objective = found.objective * kNsPerUnit, .bound = found.bound * kNsPerUnit,
                      .columns = problem_.columns()};
    if (!found.values.empty()) answer.choice = read(found.values);
    return answer;
  }

 private:
  struct End {  // of a flow: a placement, and the columns that stand for it
    Code code = 0;
    std::vector<std::int32_t> positions;  // codes of the home, or usable strategies of the unit
  };

  [[nodiscard]] double price(double ns) const { return request_.bytes_only ? 0 : ns / kNsPerUnit; }

  void add_homes() {
    for (const HomeClass& home : space_.homes) {
      const double least = *std::min_element(home.bytes.begin(), home.bytes.end());
      std::vector<int>& columns = home_column_.emplace_back();
      std::vector<Term> one;
      for (std::size_t i = 0; i < home.codes.size(); ++i) {
        const bool fits = space_.least_bytes - least + home.bytes[i] <= request_.byte_budget * (1 + 1e-12);
        columns.push_back(fits ? problem_.add_binary(price(home.ns[i])) : -1);
        if (!fits) continue;
        one.push_back({columns.back(), 1});
        if (request_.bytes_only) problem_.cost.back() = (home.bytes[i] - least) / kNsPerUnit;
        if (home.bytes[i] != least) budget_.push_back({columns.back(), home.bytes[i] - least});
      }
      problem_.add_row(1, 1, one);
    }
  }

  void add_units() {
    for (const SpaceUnit& unit : space_.units) {
      const UnitType& type = space_.types[static_cast<std::size_t>(unit.type)];
      const double count = space_.quotient.units[static_cast<std::size_t>(unit.unit_class)].count;
      std::vector<int>& columns = unit_column_.emplace_back();
      std::vector<Term> one;
      for (const std::int32_t k : unit.usable) {
        columns.push_back(problem_.add_column(price(count * type.strategies[static_cast<std::size_t>(k)].compute_ns), 0, 1, unit.charged));
        one.push_back({columns.back(), 1});
      }
      problem_.add_row(1, 1, one);
    }
  }

  std::vector<End> home_ends(const SpaceEdge& edge) const {
    const SpaceTensor& tensor = space_.tensors[static_cast<std::size_t>(edge.tensor_class)];
    const auto home = static_cast<std::size_t>(tensor.home);
    std::vector<End> ends;
    for (std::size_t i = 0; i < space_.homes[home].codes.size(); ++i)
      if (home_column_[home][i] >= 0) ends.push_back({tensor.of_root(space_.homes[home].codes[i], axes_), {home_column_[home][i]}});
    return ends;
  }

  std::vector<End> unit_ends(const SpaceEdge& edge) const {
    const SpaceUnit& unit = space_.units[static_cast<std::size_t>(edge.unit)];
    const auto& strategies = space_.types[static_cast<std::size_t>(unit.type)].strategies;
    std::vector<End> ends;
    std::unordered_map<Code, std::size_t> known;
    for (std::size_t i = 0; i < unit.usable.size(); ++i) {
      const Strategy& strategy = strategies[static_cast<std::size_t>(unit.usable[i])];
      const Code code = (edge.output ? strategy.out : strategy.in)[static_cast<std::size_t>(edge.at)];
      const auto [at, fresh] = known.try_emplace(code, ends.size());
      if (fresh) ends.push_back({code, {}});
      ends[at->second].positions.push_back(unit_column_[static_cast<std::size_t>(edge.unit)][i]);
    }
    return ends;
  }

  void add_edge(const SpaceEdge& edge) {
    const std::vector<End> homes = home_ends(edge), wanted = unit_ends(edge);
    const std::size_t pairs = homes.size() * wanted.size();
    if (homes.size() == 1) return add_directly(edge, homes[0], wanted, true);
    if (wanted.size() == 1) return add_directly(edge, wanted[0], homes, false);
    if (edge.charged > 0 || edge.pinned || edge.written) return add_pairs(edge, homes, wanted);
    const Ways& ways = space_.ways(space_.example(edge.tensor_class), partial_of(homes, wanted));
    if (pairs <= ways.steps().size()) return add_pairs(edge, homes, wanted);
    add_network(edge, edge.output ? wanted : homes, edge.output ? homes : wanted, ways);
  }

  AxisCode partial_of(const std::vector<End>& a, const std::vector<End>& b) const {
    AxisCode partial = kWhole;
    for (const auto* ends : {&a, &b})
      for (const End& end : *ends)
        for (std::size_t axis = 0; axis < axes_; ++axis) partial = std::min(partial, axis_code(end.code, axis));
    return partial;
  }

  // Copies that count, in bytes of the whole class.
  [[nodiscard]] double copy_bytes(const SpaceEdge& edge, Code home, Code strategy) const {
    if (edge.charged == 0 || home == strategy) return 0;
    return edge.charged * static_cast<double>(largest_bytes(space_.example(edge.tensor_class), strategy, space_.mesh));
  }

  // One side is settled: the other side's columns pay.
  void add_directly(const SpaceEdge& edge, const End& settled, const std::vector<End>& open, bool home_settled) {
    for (const End& end : open) {
      const Code home = home_settled ? settled.code : end.code, strategy = home_settled ? end.code : settled.code;
      const double ns = space_.edge_ns(edge, home, strategy), copied = copy_bytes(edge, home, strategy);
      for (const std::int32_t column : end.positions) pay(column, edge.count * ns, copied);
    }
  }

  void pay(std::int32_t column, double ns, double copied) {
    const auto at = static_cast<std::size_t>(column);
    if (std::isinf(ns)) {
      problem_.upper[at] = 0;
      return;
    }
    problem_.cost[at] += request_.bytes_only ? copied / kNsPerUnit : price(ns);
    if (copied > 0) budget_.push_back({column, copied});
  }

  void add_pairs(const SpaceEdge& edge, const std::vector<End>& homes, const std::vector<End>& wanted) {
    std::vector<std::vector<Term>> leaves(homes.size()), arrives(wanted.size());
    for (std::size_t i = 0; i < homes.size(); ++i) {
      for (std::size_t j = 0; j < wanted.size(); ++j) {
        const double ns = space_.edge_ns(edge, homes[i].code, wanted[j].code);
        if (std::isinf(ns)) continue;
        const int column = problem_.add_column(0, 0, 1, false);
        pay(column, edge.count * ns, copy_bytes(edge, homes[i].code, wanted[j].code));
        leaves[i].push_back({column, 1});
        arrives[j].push_back({column, 1});
      }
    }
    for (std::size_t i = 0; i < homes.size(); ++i) tie(leaves[i], homes[i]);
    for (std::size_t j = 0; j < wanted.size(); ++j) tie(arrives[j], wanted[j]);
  }

  void tie(std::vector<Term>& sum, const End& end) {
    for (const std::int32_t column : end.positions) sum.push_back({column, -1});
    problem_.add_row(0, 0, sum);
  }

  void add_network(const SpaceEdge& edge, const std::vector<End>& from, const std::vector<End>& to, const Ways& ways) {
    std::unordered_map<Code, std::vector<Term>> balance;
    for (const Code code : ways.codes()) balance[code];
    for (const Hop& step : ways.steps()) {
      const int column = problem_.add_column(price(edge.count * step.ns), 0, 1, false);
      balance[step.from].push_back({column, -1});
      balance[step.to].push_back({column, 1});
    }
    for (const End& end : from)
      for (const std::int32_t column : end.positions) balance[end.code].push_back({column, 1});
    for (const End& end : to)
      for (const std::int32_t column : end.positions) balance[end.code].push_back({column, -1});
    for (const Code code : ways.codes()) problem_.add_row(0, 0, balance[code]);
  }

  void add_budget() {
    if (std::isinf(request_.byte_budget) || budget_.empty()) return;
    const double room = std::max(0.0, request_.byte_budget - space_.least_bytes);
    const double unit = std::max(1.0, std::max(room, 1e-3 * space_.least_bytes));
    for (Term& term : budget_) term.coefficient /= unit;
    problem_.add_row(-kInfinity, room / unit, budget_);
  }

  Choice read(const std::vector<double>& values) const {
    Choice choice;
    for (const auto& columns : home_column_) choice.homes.push_back(largest(columns, values));
    for (std::size_t u = 0; u < unit_column_.size(); ++u) choice.strategies.push_back(largest(unit_column_[u], values));
    return choice;
  }

  static std::int32_t largest(const std::vector<int>& columns, const std::vector<double>& values) {
    std::int32_t best = -1;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] < 0) continue;
      if (best < 0 || values[static_cast<std::size_t>(columns[i])] > values[static_cast<std::size_t>(columns[static_cast<std::size_t>(best)])])
        best = static_cast<std::int32_t>(i);
    }
    return best;
  }

  const Space& space_;
  const ShardingOptions& options_;
  const MilpRequest& request_;
  std::size_t axes_;
  MilpProblem problem_;
  std::vector<std::vector<int>> home_column_, unit_column_;  // -1: cannot be
  std::vector<Term> budget_;
};

}  // namespace

MilpAnswer solve_space(const Space& space, const ShardingOptions& options, const MilpRequest& request) {
  return ShardingMilp(space, options, request).run();
}

}  // namespace stowage
