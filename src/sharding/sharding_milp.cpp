#include "sharding/sharding_milp.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "sharding/meeting.h"

namespace stowage {
namespace {

// Times enter in microseconds and bytes as parts of the budget, so that the solver's tolerances mean the same in both.
constexpr double kNsPerUnit = 1e3;
// With overlap the cost of a plan is its time only about: a larger gap costs nothing there
constexpr double kLooser = 5;

class ShardingMilp {
 public:
  ShardingMilp(const Space& space, const ShardingOptions& options, const MilpRequest& request, SolvedPrograms& solved)
      : space_(space), options_(options), request_(request), solved_(solved), axes_(space.mesh.axes.size()) {}

  MilpAnswer run() {
    met_ = find_meetings(space_);
    // Known choices need not be those that meet
    if (request_.within != nullptr) met_.assign(space_.homes.size(), nullptr);
    find_exact();
    add_homes();
    add_units();
    for (const SpaceEdge& edge : space_.edges)
      if (!request_.bytes_only || edge.pinned || edge.charged > 0) add_edge(edge);  // the others cost time alone
    add_budget();
    for (const PeakRow& row : request_.peaks) add_peak(row);
    MilpOptions milp;
    milp.relative_gap = request_.bytes_only ? 0 : options_.relative_gap * (space_.overlap ? kLooser : 1);
    if (request_.bytes_only) milp.absolute_gap = 0.5 / kNsPerUnit;  // bytes are whole
    milp.iteration_limit = options_.iteration_limit;
    milp.time_limit_seconds = request_.seconds;
    milp.seed = options_.seed;
    milp.library = options_.solver_library;
    const MilpResult found = solved_.solve(problem_, milp);
    MilpAnswer answer{.outcome = found.outcome,
                      .choice = {},
                      .objective = found.objective * kNsPerUnit,
                      .bound = found.bound * kNsPerUnit,
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
    for (std::size_t h = 0; h < space_.homes.size(); ++h) {
      const HomeClass& home = space_.homes[h];
      std::unordered_set<Code> wanted;
      if (met_[h] != nullptr)
        for (const Code code : space_.unit_codes(*met_[h])) wanted.insert(code);
      const double least = *std::min_element(home.bytes.begin(), home.bytes.end());
      std::vector<int>& columns = home_column_.emplace_back();
      std::vector<Term> one;
      for (std::size_t i = 0; i < home.codes.size(); ++i) {
        const bool fits = (request_.within == nullptr || request_.within->homes[h][i] != 0) &&
                          space_.least_bytes - least + home.bytes[i] <= request_.byte_budget * (1 + 1e-12) &&
                          (met_[h] == nullptr || wanted.contains(space_.home_code(*met_[h], home.codes[i])));
        columns.push_back(fits ? problem_.add_binary(price(space_.home_price(home, i))) : -1);
        if (!fits) continue;
        one.push_back({columns.back(), 1});
        if (request_.bytes_only) problem_.cost.back() = (home.bytes[i] - least) / kNsPerUnit;
        if (home.bytes[i] != least) budget_.push_back({columns.back(), home.bytes[i] - least});
      }
      problem_.add_row(1, 1, one);
    }
  }

  void add_units() {
    for (std::size_t u = 0; u < space_.units.size(); ++u) {
      const SpaceUnit& unit = space_.units[u];
      const double count = space_.quotient.units[static_cast<std::size_t>(unit.unit_class)].count;
      std::vector<int>& columns = unit_column_.emplace_back();
      std::vector<Term> one;
      for (std::size_t i = 0; i < unit.usable.size(); ++i) {
        const std::int32_t k = unit.usable[i];
        if (request_.within != nullptr && request_.within->strategies[u][i] == 0) {
          columns.push_back(-1);
          continue;
        }
        columns.push_back(
            problem_.add_column(price(space_.unit_price(unit, count * space_.strategy(unit, k).compute_ns)), 0, 1,
                                unit.charged || exact_[u] != 0));
        one.push_back({columns.back(), 1});
      }
      problem_.add_row(1, 1, one);
    }
  }

  std::vector<End> home_ends(const SpaceEdge& edge) const {
    const std::size_t home = space_.home_of(edge);
    std::vector<End> ends;
    for (std::size_t i = 0; i < space_.homes[home].codes.size(); ++i)
      if (home_column_[home][i] >= 0)
        ends.push_back({space_.home_code(edge, space_.homes[home].codes[i]), {home_column_[home][i]}});
    return ends;
  }

  std::vector<End> unit_ends(const SpaceEdge& edge) const {
    const std::vector<Code> codes = space_.unit_codes(edge);
    std::vector<End> ends;
    std::unordered_map<Code, std::size_t> known;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (unit_column_[static_cast<std::size_t>(edge.unit)][i] < 0) continue;
      const auto [at, fresh] = known.try_emplace(codes[i], ends.size());
      if (fresh) ends.push_back({codes[i], {}});
      ends[at->second].positions.push_back(unit_column_[static_cast<std::size_t>(edge.unit)][i]);
    }
    return ends;
  }

  void add_edge(const SpaceEdge& edge) {
    const std::vector<End> homes = home_ends(edge), wanted = unit_ends(edge);
    if (met_[space_.home_of(edge)] == &edge) return add_meeting(homes, wanted);
    if (homes.size() == 1) return add_directly(edge, homes[0], wanted, true);
    if (wanted.size() == 1) return add_directly(edge, wanted[0], homes, false);
    if (edge.charged > 0 || edge.pinned || edge.written) return add_pairs(edge, homes, wanted);
    const auto& from = edge.output ? wanted : homes;
    const auto& to = edge.output ? homes : wanted;
    const std::vector<Hop> steps =
        space_.priced_ways(space_.example(edge.tensor_class), partial_of(homes, wanted), Space::timing(edge))
            .steps_between(codes_of(from), codes_of(to));
    if (homes.size() * wanted.size() <= steps.size()) return add_pairs(edge, homes, wanted);
    add_network(edge, from, to, steps);
  }

  static std::vector<Code> codes_of(const std::vector<End>& ends) {
    std::vector<Code> codes;
    for (const End& end : ends) codes.push_back(end.code);
    return codes;
  }

  // Both ends are the same placement.
  void add_meeting(const std::vector<End>& homes, const std::vector<End>& wanted) {
    std::map<Code, std::vector<Term>> balance;  // in an order that repeats
    for (const End& end : homes) balance[end.code].push_back({end.positions[0], 1});
    for (const End& end : wanted)
      for (const std::int32_t column : end.positions) balance[end.code].push_back({column, -1});
    for (const auto& [code, terms] : balance) problem_.add_row(0, 0, terms);
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
      const double ns = space_.edge_price(edge, home, strategy), copied = copy_bytes(edge, home, strategy);
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
        const double ns = space_.edge_price(edge, homes[i].code, wanted[j].code);
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

  void add_network(const SpaceEdge& edge, const std::vector<End>& from, const std::vector<End>& to,
                   const std::vector<Hop>& steps) {
    std::map<Code, std::vector<Term>> balance;  // in an order that repeats
    for (const Hop& step : steps) {
      const int column = problem_.add_column(price(edge.count * step.ns), 0, 1, false);
      balance[step.from].push_back({column, -1});
      balance[step.to].push_back({column, 1});
    }
    for (const End& end : from)
      for (const std::int32_t column : end.positions) balance[end.code].push_back({column, 1});
    for (const End& end : to)
      for (const std::int32_t column : end.positions) balance[end.code].push_back({column, -1});
    for (const auto& [code, terms] : balance) problem_.add_row(0, 0, terms);
  }

  void add_budget() {
    if (std::isinf(request_.byte_budget) || budget_.empty()) return;
    const double room = std::max(0.0, request_.byte_budget - space_.least_bytes);
    const double unit = std::max(1.0, std::max(room, 1e-3 * space_.least_bytes));
    for (Term& term : budget_) term.coefficient /= unit;
    problem_.add_row(-kInfinity, room / unit, budget_);
  }

  // Units at whose op there is a row: what they copy must be told. And homes that a row looks at cost more than time.
  void find_exact() {
    exact_.assign(space_.units.size(), 0);
    for (const PeakRow& row : request_.peaks) {
      for (std::size_t h = 0; h < met_.size(); ++h)
        if (!row.home_bytes[h].empty()) met_[h] = nullptr;
      for (const auto& [e, count] : row.copies) {
        const SpaceEdge& edge = space_.edges[static_cast<std::size_t>(e)];
        exact_[static_cast<std::size_t>(edge.unit)] = 1;
        met_[space_.home_of(edge)] = nullptr;
      }
    }
  }

  void add_peak(const PeakRow& row) {
    std::vector<Term> sum;
    for (std::size_t h = 0; h < row.home_bytes.size(); ++h)
      for (std::size_t i = 0; i < row.home_bytes[h].size(); ++i)
        if (home_column_[h][i] >= 0) sum.push_back({home_column_[h][i], row.home_bytes[h][i]});
    for (const auto& [edge, count] : row.copies) add_copies(space_.edges[static_cast<std::size_t>(edge)], count, sum);
    for (Term& term : sum) term.coefficient /= row.limit;
    problem_.add_row(-kInfinity, 1, sum);
  }

  // What the unit wants or leaves, less what stays as it is: `stays` is at most 1 on either side, and as large as it
  // can be.
  void add_copies(const SpaceEdge& edge, double count, std::vector<Term>& sum) {
    std::unordered_map<Code, std::int32_t> homes;
    for (const End& end : home_ends(edge)) homes.emplace(end.code, end.positions[0]);
    for (const End& end : unit_ends(edge)) {
      const double bytes =
          count * static_cast<double>(largest_bytes(space_.example(edge.tensor_class), end.code, space_.mesh));
      for (const std::int32_t column : end.positions) sum.push_back({column, bytes});
      const auto home = homes.find(end.code);
      if (home == homes.end()) continue;
      const int stays = problem_.add_column(0, 0, 1, false);
      sum.push_back({stays, -bytes});
      problem_.add_row(-kInfinity, 0, {{stays, 1}, {home->second, -1}});
      std::vector<Term> at_most = {{stays, 1}};
      for (const std::int32_t column : end.positions) at_most.push_back({column, -1});
      problem_.add_row(-kInfinity, 0, at_most);
    }
  }

  Choice read(const std::vector<double>& values) const {
    Choice choice;
    for (std::size_t h = 0; h < space_.homes.size(); ++h)
      choice.keep_home.push_back(std::any_of(request_.peaks.begin(), request_.peaks.end(),
                                             [&](const PeakRow& row) { return !row.home_bytes[h].empty(); }));
    choice.keep_unit = exact_;
    for (const auto& columns : home_column_) choice.homes.push_back(largest(columns, values));
    for (std::size_t u = 0; u < unit_column_.size(); ++u) choice.strategies.push_back(largest(unit_column_[u], values));
    return choice;
  }

  static std::int32_t largest(const std::vector<int>& columns, const std::vector<double>& values) {
    std::int32_t best = -1;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] < 0) continue;
      if (best < 0 || values[static_cast<std::size_t>(columns[i])] >
                          values[static_cast<std::size_t>(columns[static_cast<std::size_t>(best)])])
        best = static_cast<std::int32_t>(i);
    }
    return best;
  }

  const Space& space_;
  const ShardingOptions& options_;
  const MilpRequest& request_;
  SolvedPrograms& solved_;
  std::size_t axes_;
  MilpProblem problem_;
  std::vector<const SpaceEdge*> met_;  // per home: the edge to its only reader, where it lives as that wants it
  std::vector<char> exact_;            // per unit
  std::vector<std::vector<int>> home_column_, unit_column_;  // -1: cannot be
  std::vector<Term> budget_;
};

}  // namespace

MilpAnswer solve_space(const Space& space, const ShardingOptions& options, const MilpRequest& request,
                       SolvedPrograms& solved) {
  return ShardingMilp(space, options, request, solved).run();
}

}  // namespace stowage
