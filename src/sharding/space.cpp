#include "sharding/space.h"

#include <algorithm>
#include <cmath>

#include "base/concat.h"
#include "sharding/waits.h"
#include "stowage/error.h"

namespace stowage {
namespace {

constexpr int kMostPlacements = 5'000;   // of a tensor: ways between them are squares of it
constexpr int kMostStrategies = 50'000;  // of an op

class SpaceBuilder {
 public:
  SpaceBuilder(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options, Space& space)
      : program_(program), options_(options), space_(space), axes_(mesh.axes.size()) {
    space_.program = &program;
    space_.mesh = mesh;
  }

  void run() {
    check();
    space_.units_of_program = make_units(program_);
    find_types();
    space_.quotient = make_quotient(program_, space_.units_of_program, options_.fixed, options_.cluster_rounds);
    if (options_.overlap) space_.late = find_late(space_);
    join_followers();
    mark_followers();
    space_.storage = find_storage(program_, space_.units_of_program, space_.follows);
    find_partial_homes();
    list_codes();
    add_choosers();
    price_homes();
    for (const HomeClass& home : space_.homes)
      space_.least_bytes += *std::min_element(home.bytes.begin(), home.bytes.end());
  }

 private:
  // Bounds what there is to choose from, and with it time and memory.
  void check_ways() const {
    for (std::size_t t = 0; t < program_.tensors.size(); ++t) {
      const auto& shape = program_.tensors[t].shape;
      const auto cuts = std::count_if(shape.begin(), shape.end(), [](std::int64_t size) { return size > 1; });
      if (std::pow(static_cast<double>(cuts + 2), static_cast<double>(axes_)) > kMostPlacements)
        throw Error(concat("tensor ", t, ": ", cuts, " dimensions to cut over ", axes_, " axes are more than ",
                           kMostPlacements, " placements: use a mesh of fewer axes"));
    }
  }

  // Whoever makes a view takes what it is a view of.
  void check_views() const {
    for (std::size_t o = 0; o < program_.ops.size(); ++o) {
      const ProgramOp& op = program_.ops[o];
      if (std::any_of(op.args.begin(), op.args.end(),
                      [](const TensorArgument& argument) { return !argument.tensors.empty(); }))
        continue;
      for (const TensorId out : op.outputs)
        if (out.valid() && program_.tensors[out.index()].alias_of.valid())
          throw Error(concat("op ", o, ": makes tensor ", out.value, ", a view (alias_of), but takes no tensor"));
    }
  }

  void check() const {
    if (axes_ == 0 || axes_ > kMaxAxes) throw Error(concat("a mesh has 1 to ", kMaxAxes, " axes, not ", axes_));
    for (const auto& [tensor, placement] : options_.fixed) {
      if (tensor < 0 || static_cast<std::size_t>(tensor) >= program_.tensors.size())
        throw Error(concat("fixed: there is no tensor ", tensor));
      if (placement.size() != axes_)
        throw Error(concat("fixed: tensor ", tensor, " has ", placement.size(), " parts, the mesh ", axes_, " axes"));
      for (const AxisPlacement part : placement)
        if (part.kind == AxisPlacement::Kind::kShard &&
            static_cast<std::size_t>(part.dim) >= program_.tensors[static_cast<std::size_t>(tensor)].shape.size())
          throw Error(concat("fixed: tensor ", tensor, " has no dimension ", static_cast<int>(part.dim)));
    }
    check_ways();
    check_views();
  }

  void find_types() {
    std::map<std::string, std::int32_t> known;
    for (const Unit& unit : space_.units_of_program) {
      const auto [at, fresh] =
          known.try_emplace(unit_signature(program_, unit), static_cast<std::int32_t>(known.size()));
      space_.type_of_unit.push_back(at->second);
      if (!fresh) continue;
      UnitType& type = space_.types.emplace_back();
      type.rule = rule_of(UnitView(program_, unit));
      if (std::pow(static_cast<double>(type.rule.rows.size()), static_cast<double>(axes_)) > kMostStrategies)
        throw Error(concat("op ", unit.op.value, " '", program_.ops[unit.op.index()].target,
                           "': ", type.rule.rows.size(), " ways to run it over each of ", axes_, " axes are more than ",
                           kMostStrategies, " together: use a mesh of fewer axes"));
      type.strategies = strategies_of(program_, unit, type.rule, space_.mesh);
      type.still = std::all_of(type.strategies.begin(), type.strategies.end(),
                               [](const Strategy& strategy) { return strategy.compute_ns == 0; });
    }
  }

  [[nodiscard]] const Unit& example(const UnitClass& unit) const {
    return space_.units_of_program[static_cast<std::size_t>(unit.example)];
  }
  [[nodiscard]] UnitType& type_of(const UnitClass& unit) {
    return space_.types[static_cast<std::size_t>(space_.type_of_unit[static_cast<std::size_t>(unit.example)])];
  }

  // Per dimension of the input the one of the result, when every way to cut the input has its row and divides evenly
  // where it must.
  [[nodiscard]] bool follower_map(const UnitClass& unit, std::vector<std::int8_t>& map) {
    const OpRule& rule = type_of(unit).rule;
    if (!rule.follows || unit.sources[0].size() != 1) return false;
    const Unit& instance = example(unit);
    const auto& in = program_.tensors[instance.slots[0].tensor.index()].shape;
    const auto& out = program_.tensors[instance.outputs[0].index()].shape;
    for (const EvenDim& even : rule.even)
      if ((even.output ? out : in)[static_cast<std::size_t>(even.dim)] % space_.mesh.devices() != 0) return false;
    map.assign(in.size(), -1);
    for (const AxisRow& row : rule.rows)
      if (is_shard(row.in[0]) && is_shard(row.out[0]))
        map[static_cast<std::size_t>(row.in[0] - 1)] = static_cast<std::int8_t>(row.out[0] - 1);
    for (std::size_t d = 0; d < in.size(); ++d)
      if (in[d] > 1 && map[d] < 0) return false;
    return true;
  }

  void join_followers() {
    const std::size_t classes = space_.quotient.tensor_example.size();
    std::vector<std::int32_t> leader(classes, -1);
    follower_.assign(space_.quotient.units.size(), 0);
    space_.tensors.resize(classes);
    for (std::size_t c = 0; c < classes; ++c)
      leader[c] = static_cast<std::int32_t>(c), own_dims(static_cast<std::int32_t>(c));
    for (std::size_t u = 0; u < space_.quotient.units.size(); ++u) {
      const UnitClass& unit = space_.quotient.units[u];
      std::vector<std::int8_t> map;
      if (unit.outputs.size() != 1 || unit.outputs[0] < 0 || unit.sources.size() != 1 || !follower_map(unit, map))
        continue;
      const std::int32_t in = unit.sources[0].begin()->first, out = unit.outputs[0];
      if (in == out || leader[static_cast<std::size_t>(out)] != out || leads(leader, out) || reaches(leader, in, out))
        continue;
      const SpaceTensor& from = space_.tensors[static_cast<std::size_t>(in)];
      SpaceTensor& to = space_.tensors[static_cast<std::size_t>(out)];
      to.dims.assign(from.dims.size(), -1);
      for (std::size_t d = 0; d < from.dims.size(); ++d)
        if (from.dims[d] >= 0) to.dims[d] = map[static_cast<std::size_t>(from.dims[d])];
      leader[static_cast<std::size_t>(out)] = leader[static_cast<std::size_t>(in)];
      has_followers_.resize(classes, 0);
      has_followers_[static_cast<std::size_t>(leader[static_cast<std::size_t>(in)])] = 1;
      follower_[u] = 1;
    }
    std::vector<std::int32_t> home(classes, -1);
    for (std::size_t c = 0; c < classes; ++c) {
      if (leader[c] != static_cast<std::int32_t>(c)) continue;
      home[c] = static_cast<std::int32_t>(space_.homes.size());
      space_.homes.push_back(
          {.root = static_cast<std::int32_t>(c), .partial = kWhole, .codes = {}, .bytes = {}, .ns = {}, .late_ns = {}});
    }
    for (std::size_t c = 0; c < classes; ++c) space_.tensors[c].home = home[static_cast<std::size_t>(leader[c])];
  }

  void own_dims(std::int32_t tensor_class) {
    auto& dims = space_.tensors[static_cast<std::size_t>(tensor_class)].dims;
    for (std::size_t d = 0; d < space_.example(tensor_class).shape.size(); ++d)
      dims.push_back(static_cast<std::int8_t>(d));
  }

  // A class that others follow already stays their root.
  [[nodiscard]] bool leads(const std::vector<std::int32_t>& leader, std::int32_t c) const {
    return static_cast<std::size_t>(c) < has_followers_.size() && has_followers_[static_cast<std::size_t>(c)] != 0 &&
           leader[static_cast<std::size_t>(c)] == c;
  }
  static bool reaches(const std::vector<std::int32_t>& leader, std::int32_t in, std::int32_t out) {
    return leader[static_cast<std::size_t>(in)] == out;
  }

  void mark_followers() {
    for (const std::int32_t c : space_.quotient.unit_class)
      space_.follows.push_back(follower_[static_cast<std::size_t>(c)]);
  }

  // Partial sums may stay as they are between a unit that leaves them and one that takes them.
  void find_partial_homes() {
    std::vector<char> made(space_.homes.size(), 0), taken(space_.homes.size(), 0), barred(space_.homes.size(), 0);
    const auto has_row = [](const std::vector<AxisRow>& rows, bool output, std::size_t at) {
      return std::any_of(rows.begin(), rows.end(),
                         [&](const AxisRow& row) { return (output ? row.out : row.in)[at] == kPartSum; });
    };
    for (std::size_t u = 0; u < space_.quotient.units.size(); ++u) {
      const UnitClass& unit = space_.quotient.units[u];
      const OpRule& rule = type_of(unit).rule;
      if (follower_[u]) {
        if (!rule.linear) barred[home_of(unit.outputs[0])] = 1;
        continue;
      }
      for (std::size_t o = 0; o < unit.outputs.size(); ++o)
        if (unit.outputs[o] >= 0 && has_row(rule.rows, true, o)) made[home_of(unit.outputs[o])] = 1;
      for (std::size_t s = 0; s < unit.sources.size(); ++s)
        for (const auto& [source, count] : unit.sources[s]) {
          if (has_row(rule.rows, false, s)) taken[home_of(source)] = 1;
          if (example(unit).slots[s].written) barred[home_of(source)] = 1;
        }
    }
    for (std::size_t t = 0; t < program_.tensors.size(); ++t) {
      const TensorKind kind = program_.tensors[t].kind;
      const bool plain =
          kind == TensorKind::kActivation && space_.storage.maker[t] >= 0 && space_.storage.counted[t] == Counted::kNot;
      if (!plain || options_.fixed.contains(static_cast<std::int32_t>(t)))
        barred[home_of(space_.quotient.tensor_class[t])] = 1;
    }
    for (std::size_t h = 0; h < space_.homes.size(); ++h)
      if (made[h] && taken[h] && !barred[h]) space_.homes[h].partial = kPartSum;
  }

  [[nodiscard]] std::size_t home_of(std::int32_t tensor_class) const {
    return static_cast<std::size_t>(space_.tensors[static_cast<std::size_t>(tensor_class)].home);
  }

  void list_codes() {
    for (HomeClass& home : space_.homes) home.codes = all_codes(space_.example(home.root), axes_, home.partial);
    for (const auto& [tensor, placement] : options_.fixed) {
      const SpaceTensor& own =
          space_.tensors[static_cast<std::size_t>(space_.quotient.tensor_class[static_cast<std::size_t>(tensor)])];
      auto& codes = space_.homes[static_cast<std::size_t>(own.home)].codes;
      std::erase_if(codes, [&](Code code) { return own.of_root(code, axes_) != to_code(placement); });
      if (codes.empty()) throw Error(concat("fixed: tensor ", tensor, " cannot live so"));
    }
  }

  // Units that choose, their edges, and what a copy at an edge counts.
  void add_choosers() {
    std::vector<std::map<std::int32_t, double>> copies(space_.quotient.units.size());  // by source
    std::vector<char> pinned(space_.quotient.units.size(), 0);
    for (std::size_t t = 0; t < program_.tensors.size(); ++t) {
      const std::int32_t maker = space_.storage.maker[t];
      if (space_.storage.counted[t] != Counted::kCopy || maker < 0) continue;
      const std::size_t u = static_cast<std::size_t>(space_.quotient.unit_class[static_cast<std::size_t>(maker)]);
      copies[u][space_.quotient
                    .tensor_class[space_.units_of_program[static_cast<std::size_t>(maker)].slots[0].tensor.index()]] +=
          1;
    }
    for (std::size_t i = 0; i < space_.units_of_program.size(); ++i)
      if (space_.storage.pinned[i]) pinned[static_cast<std::size_t>(space_.quotient.unit_class[i])] = 1;
    for (std::size_t u = 0; u < space_.quotient.units.size(); ++u)
      if (!follower_[u]) add_chooser(u, copies[u], pinned[u] != 0);
  }

  void add_chooser(std::size_t u, const std::map<std::int32_t, double>& copies, bool pinned) {
    const UnitClass& unit = space_.quotient.units[u];
    SpaceUnit chooser{
        static_cast<std::int32_t>(u), space_.type_of_unit[static_cast<std::size_t>(unit.example)], {}, !copies.empty()};
    const UnitType& type = space_.types[static_cast<std::size_t>(chooser.type)];
    for (std::size_t k = 0; k < type.strategies.size(); ++k)
      if (takes_partial_rightly(unit, type.strategies[k])) chooser.usable.push_back(static_cast<std::int32_t>(k));
    const auto index = static_cast<std::int32_t>(space_.units.size());
    for (std::size_t s = 0; s < unit.sources.size(); ++s) {
      if (axis_code(type.strategies[0].in[s], 0) == kUntouched) continue;
      for (const auto& [source, count] : unit.sources[s]) {
        const auto copy = s == 0 ? copies.find(source) : copies.end();
        space_.edges.push_back({index, static_cast<std::int32_t>(s), false, example(unit).slots[s].written,
                                pinned && s == 0, source, count, copy == copies.end() ? 0 : copy->second});
      }
    }
    for (std::size_t o = 0; o < unit.outputs.size(); ++o)
      if (unit.outputs[o] >= 0)
        space_.edges.push_back({index, static_cast<std::int32_t>(o), true, false, pinned || chooser.charged,
                                unit.outputs[o], unit.count, 0});
    space_.units.push_back(std::move(chooser));
  }

  // An input is partial only when its tensor may live so, or is a bias, which one device keeps.
  [[nodiscard]] bool takes_partial_rightly(const UnitClass& unit, const Strategy& strategy) const {
    for (std::size_t s = 0; s < strategy.in.size(); ++s) {
      if (axis_code(strategy.in[s], 0) == kUntouched || !has_partial(strategy.in[s], axes_)) continue;
      const UnitView view(program_, example(unit));
      const auto argument = view.argument_of(static_cast<int>(s));
      const bool bias = argument == "bias" || ((view.name == "addmm" || view.name == "baddbmm") && argument == "self");
      const bool lives = std::all_of(unit.sources[s].begin(), unit.sources[s].end(), [&](const auto& source) {
        return space_.homes[home_of(source.first)].partial != kWhole;
      });
      if (!bias && !lives) return false;
    }
    return true;
  }

  void price_homes() {
    for (HomeClass& home : space_.homes) home.bytes.assign(home.codes.size(), 0), home.ns = home.late_ns = home.bytes;
    std::vector<double> full(space_.tensors.size(), 0);
    for (std::size_t t = 0; t < program_.tensors.size(); ++t)
      if (space_.storage.counted[t] == Counted::kFull)
        full[static_cast<std::size_t>(space_.quotient.tensor_class[t])] += 1;
    for (std::size_t c = 0; c < full.size(); ++c) {
      if (full[c] == 0) continue;
      HomeClass& home = space_.homes[home_of(static_cast<std::int32_t>(c))];
      for (std::size_t i = 0; i < home.codes.size(); ++i) {
        const Code code = space_.tensors[c].of_root(home.codes[i], axes_);
        home.bytes[i] += full[c] * static_cast<double>(
                                       largest_bytes(space_.example(static_cast<std::int32_t>(c)), code, space_.mesh));
      }
    }
    for (std::size_t u = 0; u < space_.quotient.units.size(); ++u)
      if (follower_[u]) price_follower(u);
  }

  void price_follower(std::size_t u) {
    const UnitClass& unit = space_.quotient.units[u];
    const SpaceTensor& source = space_.tensors[static_cast<std::size_t>(unit.sources[0].begin()->first)];
    HomeClass& home = space_.homes[static_cast<std::size_t>(source.home)];
    std::map<Code, double> ns;
    for (const Strategy& strategy : type_of(unit).strategies) ns.emplace(strategy.in[0], strategy.compute_ns);
    for (std::size_t i = 0; i < home.codes.size(); ++i) {
      const auto at = ns.find(source.of_root(home.codes[i], axes_));
      const double own = unit.count * (at == ns.end() ? type_of(unit).strategies[0].compute_ns : at->second);
      home.ns[i] += own;
      if (!space_.late.empty() && space_.late[u] != 0) home.late_ns[i] += own;
    }
  }

  const TensorProgram& program_;
  const ShardingOptions& options_;
  Space& space_;
  std::size_t axes_;
  std::vector<char> follower_;       // per unit class
  std::vector<char> has_followers_;  // per tensor class
};

}  // namespace

Code SpaceTensor::of_root(Code code, std::size_t axes) const {
  for (std::size_t a = 0; a < axes; ++a) {
    const AxisCode part = axis_code(code, a);
    if (is_shard(part)) code = with_axis(code, a, shard(dims[static_cast<std::size_t>(part - 1)]));
  }
  return code;
}

std::vector<Code> Space::unit_codes(const SpaceEdge& edge) const {
  const SpaceUnit& unit = unit_of(edge);
  std::vector<Code> codes;
  for (const std::int32_t k : unit.usable)
    codes.push_back((edge.output ? strategy(unit, k).out : strategy(unit, k).in)[static_cast<std::size_t>(edge.at)]);
  return codes;
}

template <typename... AtPrices>
const Ways& Space::ways_in(WaysByKey& known, const ProgramTensor& tensor, AxisCode partial,
                           const AtPrices&... prices) const {
  std::string key = concat(tensor.item_bytes, "/", static_cast<int>(partial));
  for (const std::int64_t size : tensor.shape) key += concat(",", size);
  auto& entry = known[key];
  if (!entry) entry = std::make_unique<Ways>(tensor, mesh, partial, prices...);
  return *entry;
}

const Ways& Space::ways(const ProgramTensor& tensor, AxisCode partial) const { return ways_in(ways_, tensor, partial); }

const Ways& Space::priced_ways(const ProgramTensor& tensor, AxisCode partial, Timing timing) const {
  if (prices_.links.empty()) return ways(tensor, partial);
  return ways_in(priced_[static_cast<std::size_t>(timing)], tensor, partial, prices_.of(timing),
                 timing != Timing::kWaited);
}

void Space::set_prices(Prices prices) {
  prices_ = std::move(prices);
  for (WaysByKey& known : priced_) known.clear();
}

std::vector<double> Prices::of(Timing timing) const {
  std::vector<double> each = timing == Timing::kLate ? late_links : links;
  if (timing == Timing::kWaited)
    for (double& price : each) price += kernels;
  return each;
}

std::vector<Hop> Space::hops(std::int32_t tensor_class, Code from, Code to) const {
  AxisCode partial = kWhole;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    partial = std::min({partial, axis_code(from, a), axis_code(to, a)});
  return ways(example(tensor_class), partial).between(from, to).hops;
}

double Space::edge_ns(const SpaceEdge& edge, Code home, Code strategy) const {
  return cost(edge, home, strategy, false);
}

double Space::edge_price(const SpaceEdge& edge, Code home, Code strategy) const {
  return cost(edge, home, strategy, true);
}

double Space::cost(const SpaceEdge& edge, Code home, Code strategy, bool priced) const {
  if (home == strategy) return 0;
  if (edge.pinned) return std::numeric_limits<double>::infinity();
  AxisCode partial = kWhole;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    partial = std::min({partial, axis_code(home, a), axis_code(strategy, a)});
  const ProgramTensor& tensor = example(edge.tensor_class);
  const auto all = [&](Timing timing) -> const Ways& {
    return priced ? priced_ways(tensor, partial, timing) : ways(tensor, partial);
  };
  const Ways& first = all(timing(edge));
  const double there = edge.output ? first.between(strategy, home).ns : first.between(home, strategy).ns;
  if (!edge.written) return there;
  return there + all(edge.late ? Timing::kLate : Timing::kBeside).between(strategy, home).ns;
}

Space make_space(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options) {
  Space space;
  SpaceBuilder(program, mesh, options, space).run();
  space.overlap = options.overlap;
  space.limit = options.memory_limit_bytes;
  space.kept_share = options.kept_share;
  if (options.overlap) mark_waits(space);
  return space;
}

}  // namespace stowage
