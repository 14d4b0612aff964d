// Which tensors' bytes count, and when: the state (parameters, gradients until the optimizer has read them, optimizer
// state, buffers, inputs), and what forward saves for backward, each storage once.
//
//   u ──view──▶ v     A view that never needs its input redistributed shares its storage whatever the plan: one fragment. Other views
//                     do so only when the plan leaves their input as it lives; else they hold a copy. If backward needs u and v: u
//                     counts, and v's copy when there is one. If only v: v counts, wherever it lies (it has u's size). If only slices
//                     of u that do not cover it: u counts, all of it.
#pragma once

#include <vector>

#include "sharding/unit.h"

namespace stowage {

enum class Counted : std::uint8_t {
  kNot,
  kFull,  // at its placement
  kCopy,  // only when the unit that makes it brings its input elsewhere
};

struct Storage {
  std::vector<std::int32_t> maker;     // per tensor: a unit, or -1
  std::vector<std::int32_t> last_use;  // per tensor: a unit, or -1
  std::vector<std::int32_t> fragment;  // per tensor: the first tensor of its fragment
  // Per tensor that begins a fragment: the last unit that makes or uses any of it
  std::vector<std::int32_t> fragment_end;
  std::vector<Counted> counted;  // per tensor
  std::vector<char> saved;       // per tensor: counted as one that backward needs
  std::vector<char> pinned;      // per unit: a view that must not copy, for it or its base is written later
};

// `follows`: per unit, whether its result always lives as its input does.
Storage find_storage(const TensorProgram& program, const std::vector<Unit>& units, const std::vector<char>& follows);

bool is_state(TensorKind kind);  // exists before the step

}  // namespace stowage
