// What all searches for one plan share: the space, the clock, the fewest bytes, and the rows of ops that were peaks. run()
// is one search among all plans of a budget, or among those of a neighbourhood.
#pragma once

#include <cmath>
#include <functional>

#include "sharding/sharding_milp.h"
#include "stowage/stopwatch.h"

namespace stowage {

struct Found {
  ShardingPlan plan;
  Choice choice;          // empty: there is no plan
  bool complete = false;  // the search has looked at all that there is
};

// Bytes that count towards the budget.
double counted(const ShardingBytes& bytes);
// The plan is the best that there is at the search's prices, or proven not to exist.
bool is_settled(const Found& found);

class Search {
 public:
  Search(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options);

  // Stage 1: the fewest bytes. Before any other call; once.
  void find_fewest();
  // Searches from now on take so many seconds together, and look for what is cheapest at these prices. Their bounds are
  // bounds of that cost.
  void begin(double seconds, Prices prices);
  // A choice from which searches in small may go on; found among plans of at most (1 + eps) times the fewest bytes.
  void remember(const Choice& choice, double eps) { known_ = choice, eps_of_known_ = eps; }
  [[nodiscard]] const Choice& known() const { return known_; }  // empty: none
  [[nodiscard]] double eps_of_known() const { return eps_of_known_; }

  // The fastest plan of at most `budget` counted bytes, with every row of a peak, in so many seconds; `within`: among
  // these choices only.
  Found run(double budget, double seconds, const Neighbourhood* within = nullptr);
  // A choice that is known, if it keeps the limits.
  [[nodiscard]] Found as_plan(Choice choice, double budget) const;
  // Where neither has a plan, the first says why. Bounds hold for all choices, those of `b` not.
  [[nodiscard]] Found better(Found a, Found b) const;
  [[nodiscard]] Found nothing(Outcome outcome, double bound = 0) const;
  // Optimal where the plan's time meets its bound.
  [[nodiscard]] Outcome outcome_of(const ShardingPlan& plan) const;

  [[nodiscard]] bool has_row(std::int32_t op) const;
  void add_row(std::int32_t op, std::int64_t limit) { peaks_.push_back(make_peak_row(space_, op, limit)); }

  [[nodiscard]] const ShardingOptions& options() const { return options_; }
  [[nodiscard]] const Space& space() const { return space_; }
  [[nodiscard]] double fewest() const { return redundancy_.value; }
  [[nodiscard]] double budget(double eps) const { return std::isinf(eps) ? eps : (1 + eps) * fewest(); }
  [[nodiscard]] bool is_wider(double budget) const { return budget > fewest(); }
  [[nodiscard]] double seconds_of_all() const { return watch_.seconds(); }
  // Seconds that are left; 0: no end.
  [[nodiscard]] double left() const;
  // More than this part of their time has gone.
  [[nodiscard]] bool is_past(double part) const;

 private:
  const ShardingOptions& options_;
  Stopwatch watch_;
  StageResult redundancy_;
  bool knows_fewest_ = false;
  Choice known_;
  double eps_of_known_ = -1;
  double began_ = 0, seconds_ = 0;  // of the searches that share an end
  Space space_;
  SolvedPrograms solved_;
  std::vector<PeakRow> peaks_;  // of the ops where a plan passed the limit
};

// How a plan of at most (1 + eps) times the fewest bytes is found; infinity: of any bytes.
using Find = std::function<Found(Search& search, double eps)>;

}  // namespace stowage
