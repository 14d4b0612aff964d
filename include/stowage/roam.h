// ROAM (Shu et al., "ROAM: memory-efficient large DNN training via optimized operator ordering and memory layout",
// arXiv 2310.19295): operator order and memory layout of a training step by divide and conquer, with an ILP for each
// part. Selected by PlanOptions::method. Each part has its switch, so that it can be measured alone; every plan is
// valid whatever is switched off.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace stowage {

struct RoamOptions {
  // The parts. Without ...
  // The order is not divided at memory-insensitive operators, only into windows of node_limit ops
  bool segments = true;
  // Each segment is a leaf of its own for the order, the whole step one leaf for the layout
  bool tree = true;
  bool order_ilp = true;         // a leaf keeps the better of program and greedy order
  bool updates = true;           // weight updates stay where the program has them
  bool layout_ilp = true;        // a leaf keeps the best of its greedy layouts
  bool activation_stack = true;  // activations are placed like all other buffers
  bool concatenation = true;     // leaves are stacked on each other and share no addresses

  // A model for comparison: ops of one level share a step. Executed is one stream all the same
  bool multi_stream = false;
  std::int32_t node_limit = 48;  // ops of a leaf
  double delay_radius = 1.0;     // how long a weight update may wait, as a fraction of the step without updates
  double update_ratio = 1.0;     // gradients smaller than this times the inputs of their op never wait
  std::int64_t ilp_nodes = 200;  // limits of one ILP
  std::int64_t ilp_iterations = 3'000;
  std::int32_t layout_ilp_buffers = 48;  // larger leaves keep their greedy layout
};

// The switches by name, for command lines and bindings.
struct RoamPart {
  std::string_view name;
  bool RoamOptions::* enabled;
};
inline constexpr std::array kRoamParts = {
    RoamPart{"segments", &RoamOptions::segments},
    RoamPart{"tree", &RoamOptions::tree},
    RoamPart{"order-ilp", &RoamOptions::order_ilp},
    RoamPart{"updates", &RoamOptions::updates},
    RoamPart{"layout-ilp", &RoamOptions::layout_ilp},
    RoamPart{"activation-stack", &RoamOptions::activation_stack},
    RoamPart{"concatenation", &RoamOptions::concatenation},
};

// False when no part has this name.
inline bool switch_off(RoamOptions& options, std::string_view part) {
  for (const RoamPart& known : kRoamParts) {
    if (known.name != part) continue;
    options.*known.enabled = false;
    return true;
  }
  return false;
}

struct RoamStats {
  std::int64_t insensitive_ops = 0;  // comparable with all others
  std::int64_t shells = 0;           // of the subgraph tree
  std::int64_t independent_shells = 0;
  std::int64_t update_branches = 0;
  std::int64_t delayed_branches = 0;
  std::int64_t order_leaves = 0;
  // Of these, solved to optimality (by the ILP, or the start meets the must-live bound)
  std::int64_t order_proven = 0;
  std::int64_t order_ilps = 0;  // given to the solver; equal leaves are solved once
  std::int64_t layout_leaves = 0;
  std::int64_t layout_proven = 0;  // of these, as high as the live bytes demand, or solved to optimality
  std::int64_t layout_ilps = 0;
  std::int64_t evicted = 0;                  // buffers placed anew when the leaves were put together
  std::int64_t multi_stream_peak_bytes = 0;  // of the model; 0 when it is off
};

// {"method": "roam", ...}: what a plan file carries as its meta.
std::string to_json(const RoamStats& stats);

}  // namespace stowage
