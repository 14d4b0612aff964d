// Who occupies which addresses when: the placements and scratch buffers of a plan as rectangles of time and address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::checker {

// A tick of a step as one number, so that times compare as numbers.
using Time = std::int64_t;
constexpr Time time_at(std::int64_t step, std::int32_t tick) { return step * (Time{1} << 32) + tick; }

// A placement or scratch buffer that takes space: [start, end) by [offset, offset + bytes).
struct Tenant {
  Time start = 0;
  Time end = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::int32_t placement = -1;  // position in Plan::placements, or
  std::int32_t scratch = -1;    // position in Plan::scratch
};

// All tenants of more than zero bytes, each inside the arena and aligned; every scratch buffer of every op step has one
// address. Throws Violation (rule 6) otherwise. The plan must have passed simulate(). O(P + S log S + the sizes of the
// ops that run).
//
// A buffer c that reuses r in place appears only from the next step on: until then r, which is at least as large, occupies
// the place of both for the whole step, so whoever overlaps c there overlaps r.
std::vector<Tenant> list_tenants(const Graph& graph, const Plan& plan);

std::string describe(const Graph& graph, const Plan& plan, const Tenant& tenant);

}  // namespace stowage::checker
