// Ruin and recreate (Schrimpf et al., "Record breaking optimization results using the ruin and recreate principle", J.
// Comp. Phys. 159, 2000; here what is a little worse than the best stays, too, and ever less of it).
//
//   line   A  B  [C  B' D  A' E]  F        what was done in a stretch of the line is undone: runs again, and copies that
//   best   ─────── undone ──────           end there. Then it is covered again, by other prices of the lanes and with other
//   now    A  B  [C  A' D  E   A'] F       luck.
#pragma once

#include <cstdint>
#include <functional>

#include "budget/attempt.h"
#include "budget/recipes.h"

namespace stowage::budget {

struct ImproveOptions {
  Link link;
  std::int64_t limit = 0;
  double lane_price = 0.04;  // around which those of the tries lie
  std::uint64_t seed = 0;
  std::int64_t tries = 0;
  std::int64_t least_ns = 0;  // none is faster
  std::function<bool()> should_stop;
};

// `found` is called with each that fits, and says whether it is the best from now on.
void improve(const Recipes& recipes, Attempt start, const ImproveOptions& options, std::int64_t& work,
             const std::function<bool(const Attempt&)>& found);

}  // namespace stowage::budget
