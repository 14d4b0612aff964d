// Programs that were solved before. Searches at several prices and budgets often come to the same one.
//
//   solve(p, options)     as milp.h says; the same p and gaps again: the answer of before
//
// An answer that a clock has cut short is no answer to the next: it may have more time. Costs one comparison with each
// program kept; larger ones than kMostEntries are not kept.
#pragma once

#include <vector>

#include "solver/milp.h"

namespace stowage {

class SolvedPrograms {
 public:
  // All calls with the same limits, seed and library.
  MilpResult solve(const MilpProblem& problem, const MilpOptions& options);

  [[nodiscard]] std::size_t kept() const { return solved_.size(); }

 private:
  static constexpr std::size_t kMostEntries = 200'000;
  struct Solved {
    MilpProblem problem;
    double relative_gap, absolute_gap;
    MilpResult result;
  };
  std::vector<Solved> solved_;
};

}  // namespace stowage
