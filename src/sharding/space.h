// The space of choices: where each tensor lives and how each unit runs, as classes with prices.
//
//   home   a set of tensor classes that live alike: a tensor and what follows it (views, gelu). Per way to live: bytes, time.
//   unit   a class of units that choose a strategy. Per strategy: compute time, placements of inputs and outputs.
//   edge   a tensor class at a slot or an output of a unit class: pays for the redistribution between home and strategy.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sharding/quotient.h"
#include "sharding/redistribution.h"
#include "sharding/storage.h"
#include "sharding/strategies.h"

namespace stowage {

struct HomeClass {
  std::int32_t root = 0;      // tensor class
  AxisCode partial = kWhole;  // may live as such summands
  std::vector<Code> codes;    // of the root
  std::vector<double> bytes;  // per code: what counts, of all tensors of the class
  std::vector<double> ns;     // per code: of the units that follow
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
};

struct UnitType {
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
  // What the usable strategies want at an edge, or leave there: one for each of them.
  [[nodiscard]] std::vector<Code> unit_codes(const SpaceEdge& edge) const;
  [[nodiscard]] const Ways& ways(const ProgramTensor& tensor, AxisCode partial) const;
  // ns of a redistribution at an edge, both ways for what is written.
  [[nodiscard]] double edge_ns(const SpaceEdge& edge, Code home, Code strategy) const;

 private:
  mutable std::map<std::string, std::unique_ptr<Ways>> ways_;
};

Space make_space(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options);

// What a search leaves: for each home the position of its code, for each unit that chooses the position among its
// usable strategies.
struct Choice {
  std::vector<std::int32_t> homes, strategies;
  std::vector<char> keep_home, keep_unit;  // a limit rests on these; empty: on none
};

}  // namespace stowage
