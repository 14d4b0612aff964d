// MODeL (Steiner et al., "MODeL: memory optimizations for deep learning", ICML 2023; first as OLLA, arXiv 2210.12924):
// the order of the whole step as one integer program, then its layout as another, each within a limit.
//
//   graph ─▶ order program (all ops at once) ─▶ order ─▶ layout program (all buffers at once) ─▶ addresses
//
// The programs are those of src/roam/order_ilp.h and layout_ilp.h, which ROAM took over from here, on the undivided
// graph. As in the authors' code, ops of one level may share a step, steps are 1.01 times the longest path, and the
// gaps are 0.005 and 0.001; the peak of that model is reported beside the peak of the order when run on one stream.
// With `multi_stream` off it decides a total order. Differs: HiGHS instead of Gurobi; no control edges that tie updates
// and tensor generators to single ops (heuristics of the code), and no pinning of long-lived tensors before the layout
// program; both begin from a start (levels, or program order; the best greedy layout), so a limit leaves at least that.
// A program beyond `entries`, or a layout beyond `pairs`, is not tried: the outcome is unknown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stowage/graph.h"
#include "stowage/layout.h"

namespace stowage::rivals {

struct ModelOptions {
  bool multi_stream = true;
  double seconds = 600;               // of each stage; 0: none
  std::int64_t iterations = 0;        // simplex iterations of each stage, so that results repeat; 0: none
  std::int64_t entries = 20'000'000;  // of the order program, about 1 GiB
  std::int64_t pairs = 200'000;       // of the layout program
  std::string library;                // of HiGHS; empty: looked for
};

struct ModelStage {
  Outcome outcome = Outcome::kUnknown;  // kOptimal: within the stage's gap
  std::int64_t bound_bytes = 0;         // of the stage's own problem; 0 when there is none
  double seconds = 0;
};

struct ModelResult {
  std::vector<OpId> order;
  std::int64_t model_peak_bytes = 0;  // with ops sharing steps; the same as peak_bytes when they do not
  std::int64_t peak_bytes = 0;        // of the order on one stream
  std::int64_t arena_bytes = 0;
  ModelStage order_stage, layout_stage;
};

// The plan that follows has passed the checker. Throws SolverMissing, and Error when it has not.
ModelResult model_ilp(const Graph& graph, const ModelOptions& options);

}  // namespace stowage::rivals
