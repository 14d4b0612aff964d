#include "sharding/search_in_small.h"

#include <bit>
#include <utility>
#include <vector>

#include "sharding/merged_axes.h"
#include "sharding/neighbourhood.h"
#include "sharding/peak_limit.h"

namespace stowage {
namespace {

// Of the time that is left:
constexpr double kShareOfGuides = 0.5;  // for plans of merged meshes and that of the fewest bytes, together
constexpr double kShareOfRounds = 0.4;  // for each search between them
// After this part of the whole time no other small search begins
constexpr double kLate = 0.9;
constexpr double kLeastGain = 1e-4;  // less is no reason for another turn

Found search_near(Search& search, const std::vector<Choice>& known, unsigned loose, double budget) {
  const Neighbourhood near = between(search.space(), known, loose);
  Found found = within_limit(search, budget,
                             [&](double bytes) { return search.run(bytes, kShareOfRounds * search.left(), &near); });
  found.plan.time.bound = 0;  // of some choices, not of all
  return found;
}

// Any `count` axes in turn are free, and on the others all stays, until no turn helps.
Found loosen(Search& search, Found best, const Choice& otherwise, std::size_t count, double budget) {
  std::vector<unsigned> turns;
  for (unsigned loose = 0; loose < 1U << search.space().mesh.axes.size(); ++loose)
    if (static_cast<std::size_t>(std::popcount(loose)) == count) turns.push_back(loose);
  for (std::size_t i = 0, in_vain = 0; in_vain < turns.size() && !search.is_past(kLate); ++i) {
    const double before = best.plan.ops.empty() ? kInfinity : best.plan.time.value;
    const Choice from = best.plan.ops.empty() ? otherwise : best.choice;
    best = search.better(std::move(best), search_near(search, {from}, turns[i % turns.size()], budget));
    const bool helped = !best.plan.ops.empty() && best.plan.time.value < before * (1 - kLeastGain);
    in_vain = helped ? 1 : in_vain + 1;
  }
  return best;
}

}  // namespace

Found search_in_small(Search& search, double eps, const Find& plan) {
  const Mesh& mesh = search.space().mesh;
  const double budget = search.budget(eps);
  const bool knows = !search.known().homes.empty();
  const std::size_t merges = knows && search.eps_of_known() == eps ? 0 : mesh.axes.size() - 1;
  const double seconds = kShareOfGuides * search.left() / static_cast<double>(merges + 1);
  std::vector<Choice> known;
  if (knows) known.push_back(search.known());
  for (std::size_t first = 0; first < merges; ++first) {
    ShardingOptions options = search.options();
    options.fixed = merge_axes(search.options().fixed, first);
    options.time_limit_seconds = seconds;
    Search guide(*search.space().program, merge_axes(mesh, first), options);
    guide.begin(seconds, merge_axes(search.space().prices(), first));
    const Found found = plan(guide, eps);
    if (!found.choice.homes.empty()) known.push_back(split_axes(search.space(), guide.space(), found.choice, first));
  }
  Found least = search.run(search.fewest(), seconds);
  if (!least.choice.homes.empty()) known.push_back(least.choice);
  Found best = search.nothing(Outcome::kUnknown);
  for (const Choice& choice : known) best = search.better(std::move(best), search.as_plan(choice, budget));
  best = search.better(std::move(best), search_near(search, known, 0, budget));
  if (known.empty()) return best;
  for (std::size_t count = 1; count < mesh.axes.size(); ++count)
    best = loosen(search, std::move(best), known.back(), count, budget);
  return best;
}

}  // namespace stowage
