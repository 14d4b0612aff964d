// The choice as an integer program, solved by HiGHS.
//
//   s[h, p]  1 when home h lives as p                 sum_p s[h, p] = 1                       binary
//   x[u, k]  1 when unit u runs by strategy k         sum_k x[u, k] = 1
//   f[e, .]  redistribution at edge e, as a flow      from the s of its home to the x of its unit (or back, for outputs)
//
//   minimise  sum of compute and redistribution time       subject to   counted bytes <= budget
//
// An edge is tied to placements, not to pairs of strategies: all strategies that want an input alike are one end of the
// flow. Where few placements are left on either side, the flow runs between pairs at the price of the cheapest way;
// else along the single steps of redistribution (a network: its ways are found by the program), which for three axes is
// far smaller. Given the s, the rest is a shortest-way problem for each unit, so only s need be binary, and x where a
// copy counts as bytes. After Alpa's program (Zheng et al., OSDI 2022), which has a variable for each pair of
// strategies of each edge.
#pragma once

#include "sharding/neighbourhood.h"
#include "sharding/peak_row.h"
#include "solver/solved_programs.h"

namespace stowage {

struct MilpAnswer {
  Outcome outcome = Outcome::kUnknown;
  Choice choice;
  double objective = 0, bound = 0;
  std::int64_t columns = 0;
};

struct MilpRequest {
  bool bytes_only = false;         // minimise bytes instead of time
  double byte_budget = kInfinity;  // of what counts
  double seconds = 0;
  std::vector<PeakRow> peaks = {};
  const Neighbourhood* within = nullptr;  // choices that are looked at; null: all
};

MilpAnswer solve_space(const Space& space, const ShardingOptions& options, const MilpRequest& request,
                       SolvedPrograms& solved);

}  // namespace stowage
