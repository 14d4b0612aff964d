// The stretches of time that each buffer is on the device, and which steps run an op again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/csr.h"
#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::report {

class Pieces {
 public:
  Pieces(const Graph& graph, const Plan& plan);

  // Positions in plan.placements, by time.
  [[nodiscard]] std::span<const std::int32_t> of(BufferId buffer) const { return by_buffer_[buffer]; }
  // The placement of the buffer that covers the step, as its rank in of(buffer); -1: none.
  [[nodiscard]] std::int32_t covering(BufferId buffer, std::int32_t step) const;
  [[nodiscard]] bool again(std::int32_t step) const { return again_[static_cast<std::size_t>(step)]; }
  // The buffer over which the op of the placement's first step writes this one; invalid: none.
  [[nodiscard]] BufferId reused_input(const Placement& created) const;

 private:
  const Graph& graph_;
  const Plan& plan_;
  Csr by_buffer_;
  std::vector<bool> again_;  // per step
};

}  // namespace stowage::report
