// List scheduling by live bytes: what LESCEA and Inductor's LPMF have in common.
//
//   Of the ready ops, those that fit under the peak so far:   ▒ rise(op)   bytes that the op adds at its heaviest tick
//   take the one with the least growth.                       ░ growth(op) bytes that stay live after it, less those it frees
//   When none fits, take the one with the least rise, and
//   the peak rises with it.                     peak ───────────┬─ rises only when it must
//                                               live ▒▒░
//
// A buffer is freed by the last of its users, so the growth of an op falls when all other users of an operand have run.
// O((V + E) log V), and a pass over the ready ops that do not fit for each step.
#pragma once

#include <cstdint>
#include <vector>

#include "stowage/graph.h"

namespace stowage::rivals {

struct ListRule {
  std::vector<std::int32_t> rank;     // per op: the smaller goes first among equals
  bool growth_breaks_ties = false;    // between ops of equal rise, when none fits
  std::int64_t first_peak_bytes = 0;  // the peak to begin with
};

std::vector<OpId> list_schedule(const Graph& graph, const ListRule& rule);

}  // namespace stowage::rivals
