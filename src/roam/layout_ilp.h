// The layout of one leaf as an integer program, solved by HiGHS.
//
//   minimise top:   addr_i + bytes_i <= top        for each pair that lives at the same time, one lies above the other:
//                   addr_i >= floor_i                addr_i + bytes_i <= addr_j + H (1 - y_ij)
//                                                    addr_j + bytes_j <= addr_i + H y_ij            y_ij in {0, 1}
//
// H is the height of the best lowest fit, which is also the start. The layout ILP of ROAM (arXiv 2310.19295) and OLLA
// (arXiv 2210.12924). Differs: a start that meets the bound of fit.h is not given to the solver; addresses are
// continuous in the program, and from its solution only who lies above whom is taken: each rect then falls onto what is
// below it, so that offsets are exact and aligned. One binary for each pair; its relaxation is weak, so leaves of more
// than some dozens of rects seldom close.
#pragma once

#include "roam/fit.h"
#include "roam/order_ilp.h"

namespace stowage::roam {

struct LayoutIlpResult {
  Outcome outcome = Outcome::kFeasible;  // kOptimal: no layout is lower
  Offsets offsets;
  std::int64_t bound = 0;
  bool solver_used = false;
};

// Never worse than best_fit(). `most_rects`: larger problems keep it. `limits.entries` is not used.
LayoutIlpResult layout_ilp(const Floored& problem, std::int32_t most_rects, const IlpLimits& limits);

}  // namespace stowage::roam
