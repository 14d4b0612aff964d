// Rule 6: no two tenants share a time and an address. And the peak: the most bytes that are live at one time.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/occupancy.h"

namespace stowage::checker {

// Throws Violation when two tenants overlap; else returns the largest sum of padded bytes at one tick of one step. O(T
// log T).
std::int64_t check_overlap(const Graph& graph, const Plan& plan, const std::vector<Tenant>& tenants);

}  // namespace stowage::checker
