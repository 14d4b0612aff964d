// Clustering: units and tensors that look alike, themselves and all around them for some steps, share one choice.
//
//   layer 0   layer 1   layer 2   ...   layer 95          units of the inner layers have the same surroundings: one class, counted as
//   unlike    inner ──────────────────  unlike            often as it stands; near the ends they differ and choose for themselves
//
// Colours are refined as by Weisfeiler and Leman (1968), a fixed number of rounds: what is told apart only by what lies
// further away shares. A choice for classes is a choice for the program; the best one for classes may be worse than the
// best of all. O(rounds * E).
#pragma once

#include <map>
#include <vector>

#include "sharding/unit.h"

namespace stowage {

struct UnitClass {
  std::int32_t example = 0;  // a unit
  std::int32_t count = 0;
  // Per slot: tensor class -> how many of the units read one of it there
  std::vector<std::map<std::int32_t, std::int32_t>> sources;
  std::vector<std::int32_t> outputs;  // per output: tensor class, or -1
};

struct Quotient {
  std::vector<UnitClass> units;
  std::vector<std::int32_t> unit_class;                    // per unit
  std::vector<std::int32_t> tensor_class;                  // per tensor
  std::vector<std::int32_t> tensor_example, tensor_count;  // per tensor class
};

Quotient make_quotient(const TensorProgram& program, const std::vector<Unit>& units,
                       const std::map<std::int32_t, MeshPlacement>& fixed, int rounds);

// What a unit is by itself: target, shapes, attributes, phase.
std::string unit_signature(const TensorProgram& program, const Unit& unit);

}  // namespace stowage
