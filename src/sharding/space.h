// The space of choices: where each tensor lives and how each unit runs, as classes with prices.
//
//   home   a set of tensor classes that live alike: a tensor and what follows it (views, gelu). Per way to live: bytes, time.
//   unit   a class of units that choose a strategy. Per strategy: compute time, placements of inputs and outputs.
//   edge   a tensor class at a slot or an output of a unit class: pays for the redistribution between home and strategy.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sharding/quotient.h"
#include "sharding/redistribution.h"
#include "sharding/storage.h"
#include "sharding/strategies.h"

namespace stowage {

struct HomeClass {
  std::int32_t root = 0;        // tensor class
  AxisCode partial = kWhole;    // may live as such summands
  std::vector<Code> codes;      // of the root
  std::vector<double> bytes;    // per code: what counts, of all tensors of the class
  std::vector<double> ns;       // per code: of the units that follow
  std::vector<double> late_ns;  // per code: of those among them that are late
};

struct SpaceTensor {
  std::int32_t home = 0;
  std::vector<std::int8_t> dims;  // per dimension of the root: the own one, or -1
  [[nodiscard]] Code of_root(Code code, std::size_t axes) const;
};

struct SpaceUnit {
  std::int32_t unit_class = 0;
  std::int32_t type = 0;             // of strategies
  std::vector<std::int32_t> usable;  // of its strategies
  bool charged = false;              // redistribution of its first input counts as bytes
};

struct SpaceEdge {
  std::int32_t unit = 0;  // of `units`
  std::int32_t at = 0;    // slot or output
  bool output = false;
  bool written = false;  // the slot is changed in place: brought back after
  bool pinned = false;   // no redistribution
  std::int32_t tensor_class = 0;
  std::int32_t count = 0;
  double charged = 0;  // tensors of which a copy counts
  // With overlap (waits.h):
  bool waited = false;  // the next kernel waits for each of them
  bool late = false;    // what is brought back or away, is so when forward and backward have ended
};

// How a redistribution is priced: by its link alone; by its link and the kernels that wait for it; or as one that comes
// when most kernels have ended.
enum class Timing : std::uint8_t { kBeside, kWaited, kLate };

// What a ns of kernels, and of the link of each axis, counts in a search. Where no kernel waits, latencies are shared by so
// many that they count nothing.
struct Prices {
  double kernels = 1, late_kernels = 1;
  std::vector<double> links, late_links;  // empty: 1 each, whatever waits
  [[nodiscard]] std::vector<double> of(Timing timing) const;
};

struct UnitType {
  bool still = false;  // no strategy has a kernel: a view
  OpRule rule;
  std::vector<Strategy> strategies;
};

struct Space {
  const TensorProgram* program = nullptr;
  Mesh mesh;
  std::vector<Unit> units_of_program;
  std::vector<std::int32_t> type_of_unit;
  std::vector<UnitType> types;
  std::vector<char> follows;  // per unit of the program
  Quotient quotient;
  Storage storage;
  std::vector<HomeClass> homes;
  std::vector<SpaceTensor> tensors;  // per tensor class
  std::vector<SpaceUnit> units;      // those that choose
  std::vector<SpaceEdge> edges;
  double least_bytes = 0;  // no choice counts fewer
  bool overlap = false;
  std::vector<char> late;             // with overlap, per unit class: of the optimizer, with no other phase after it
  std::optional<std::int64_t> limit;  // of the peak
  double kept_share = 1;              // of what is neither state nor the op's own, what counts towards it

  [[nodiscard]] const ProgramTensor& example(std::int32_t tensor_class) const {
    return program->tensors[static_cast<std::size_t>(quotient.tensor_example[static_cast<std::size_t>(tensor_class)])];
  }
  [[nodiscard]] std::size_t home_of(const SpaceEdge& edge) const {
    return static_cast<std::size_t>(tensors[static_cast<std::size_t>(edge.tensor_class)].home);
  }
  // The edge's tensor, when the root of its home lives so.
  [[nodiscard]] Code home_code(const SpaceEdge& edge, Code root) const {
    return tensors[static_cast<std::size_t>(edge.tensor_class)].of_root(root, mesh.axes.size());
  }
  [[nodiscard]] const SpaceUnit& unit_of(const SpaceEdge& edge) const {
    return units[static_cast<std::size_t>(edge.unit)];
  }
  [[nodiscard]] const Strategy& strategy(const SpaceUnit& unit, std::int32_t k) const {
    return types[static_cast<std::size_t>(unit.type)].strategies[static_cast<std::size_t>(k)];
  }
  [[nodiscard]] bool is_still(std::size_t unit_of_program) const {
    return types[static_cast<std::size_t>(type_of_unit[unit_of_program])].still;
  }
  // What the usable strategies want at an edge, or leave there: one for each of them.
  [[nodiscard]] std::vector<Code> unit_codes(const SpaceEdge& edge) const;
  [[nodiscard]] const Ways& ways(const ProgramTensor& tensor, AxisCode partial) const;
  // The cheapest way of a redistribution, hop by hop.
  [[nodiscard]] std::vector<Hop> hops(std::int32_t tensor_class, Code from, Code to) const;
  // ns of a redistribution at an edge, both ways for what is written.
  [[nodiscard]] double edge_ns(const SpaceEdge& edge, Code home, Code strategy) const;
  // The same at prices.
  [[nodiscard]] const Prices& prices() const { return prices_; }
  void set_prices(Prices prices);
  [[nodiscard]] const Ways& priced_ways(const ProgramTensor& tensor, AxisCode partial, Timing timing) const;
  [[nodiscard]] double edge_price(const SpaceEdge& edge, Code home, Code strategy) const;
  [[nodiscard]] double unit_price(const SpaceUnit& unit, double ns) const {
    return ns * (!late.empty() && late[static_cast<std::size_t>(unit.unit_class)] != 0 ? prices_.late_kernels
                                                                                       : prices_.kernels);
  }
  [[nodiscard]] double home_price(const HomeClass& home, std::size_t code) const {
    return home.ns[code] * prices_.kernels + home.late_ns[code] * (prices_.late_kernels - prices_.kernels);
  }
  // Of the way from home to strategy, or away from a unit.
  static Timing timing(const SpaceEdge& edge) {
    return edge.waited ? Timing::kWaited : edge.late && edge.output ? Timing::kLate : Timing::kBeside;
  }

 private:
  using WaysByKey = std::map<std::string, std::unique_ptr<Ways>>;
  template <typename... AtPrices>
  const Ways& ways_in(WaysByKey& known, const ProgramTensor& tensor, AxisCode partial, const AtPrices&... prices) const;
  double cost(const SpaceEdge& edge, Code home, Code strategy, bool priced) const;

  Prices prices_;
  mutable WaysByKey ways_;
  mutable std::array<WaysByKey, 3> priced_;  // by timing
};

Space make_space(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options);

// What a search leaves: for each home the position of its code, for each unit that chooses the position among its
// usable strategies.
struct Choice {
  std::vector<std::int32_t> homes, strategies;
  std::vector<char> keep_home, keep_unit;  // a limit rests on these; empty: on none
};

}  // namespace stowage
