#include "solver/solved_programs.h"

#include <algorithm>

namespace stowage {

MilpResult SolvedPrograms::solve(const MilpProblem& problem, const MilpOptions& options) {
  const auto known = std::find_if(solved_.begin(), solved_.end(), [&](const Solved& s) {
    return s.relative_gap == options.relative_gap && s.absolute_gap == options.absolute_gap && s.problem == problem;
  });
  if (known != solved_.end()) return known->result;
  MilpResult result = stowage::solve(problem, options);
  const bool settled = result.outcome == Outcome::kOptimal || result.outcome == Outcome::kInfeasible;
  const bool timed = options.time_limit_seconds > 0 || options.should_stop;
  if ((settled || !timed) && problem.entries() <= kMostEntries)
    solved_.push_back({problem, options.relative_gap, options.absolute_gap, result});
  return result;
}

}  // namespace stowage
