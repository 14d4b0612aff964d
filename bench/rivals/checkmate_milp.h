// Checkmate (Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020): the
// cheapest recomputation within a limit of live bytes, for an order of first runs that is given, as one integer
// program.
//
//             op 0   1   2   3          R[t][i]  op i runs in stage t; the first run of op t ends stage t
//   stage 0      1                      S[t][c]  content c is there when stage t begins
//         1      .   1                  R[t][i] <= S[t][c] + R[t][maker of c]     for every c that op i needs
//         2      .   .   1              S[t+1][c] <= S[t][c] + R[t][maker of c]
//         3      1   .   .   1          live bytes at every op of every stage <= limit;   minimise the sum of cost · R
//
// For ops that run once the program knows so: effects, those with the trait "once", and those that write a resident; no
// reader of a resident runs in stages after its next write. Columns that cannot be of use are left out (stages.h). O(n · uses) columns.
//
// Differs: a row bounds M[t][b][k] >= R of each later use in the stage, and >= S[t+1], the bytes of b at op k, in place
// of the products FREE; both say the same of whole numbers, and these need no large constants. Contents, not ops, are
// kept: an op may make several, and an op that writes in place ends the content before its own. Scratch counts where
// the op runs. In a stage ops run in the given order, each at most once, as in the paper. Bytes are sums, each buffer
// padded: no layout, no in-place reuse, no swapping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stowage/graph.h"
#include "stowage/outcome.h"

namespace stowage::rivals {

struct CheckmateOptions {
  std::int64_t budget_bytes = 0;  // residents and live bytes
  std::vector<OpId> order;        // of first runs; empty: program order
  // Runs, repeats included, to begin from; their first runs are in the order given. Left out when a stage of theirs has
  // no form here.
  std::vector<OpId> start;
  std::int64_t nodes = 1'000'000;  // of branch and bound
  std::int64_t iterations = 0;     // simplex iterations, so that results repeat; 0: none
  double seconds = 0;              // outer stop; 0: none
  double relative_gap = 0;
  std::int64_t entries = 20'000'000;  // a larger program is not tried: the outcome is unknown
  std::string library;                // of HiGHS; empty: looked for
};

struct CheckmateResult {
  Outcome outcome = Outcome::kUnknown;  // of this program; kOptimal: within the gap asked for
  // When optimal or feasible; their peak is within the budget by the independent checker
  std::vector<OpId> runs;
  std::int64_t step_ns = 0;      // cost of the runs
  std::int64_t peak_bytes = 0;   // of the runs, without residents
  std::int64_t arena_bytes = 0;  // of the runs, laid out afterwards: may be beyond the budget
  std::int64_t bound_ns = 0;     // no schedule of this program costs less
  double seconds = 0;
  std::int64_t nodes = 0;
  std::int64_t columns = 0, rows = 0;
};

// Throws SolverMissing, and Error for an order that breaks a dependency.
CheckmateResult checkmate_milp(const Graph& graph, const CheckmateOptions& options);

}  // namespace stowage::rivals
