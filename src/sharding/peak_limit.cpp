#include "sharding/peak_limit.h"

#include <algorithm>
#include <limits>

namespace stowage {
namespace {

constexpr int kLimitRounds = 24;

}  // namespace

Found within_limit(Search& search, double budget, const std::function<Found(double budget)>& among) {
  Found found = among(budget);
  if (!search.options().memory_limit_bytes || found.plan.ops.empty()) return found;
  const std::int64_t limit = *search.options().memory_limit_bytes;
  double bound = found.plan.time.bound;
  bool proven = true;
  for (int round = 0; round < kLimitRounds && found.plan.bytes.limited_peak > limit; ++round) {
    const ShardingBytes& bytes = found.plan.bytes;
    if (search.has_row(bytes.limited_peak_op)) {
      const double smaller = std::min(budget, counted(bytes)) - static_cast<double>(bytes.limited_peak - limit);
      budget = std::max(search.fewest(), smaller);
      if (budget >= counted(bytes)) break;  // nothing that counts is left to give
      proven = false;
    } else {
      search.add_row(bytes.limited_peak_op, limit);
    }
    found = among(budget);
    if (proven) bound = found.plan.time.bound;
    if (found.plan.ops.empty()) return search.nothing(proven ? found.plan.time.outcome : Outcome::kUnknown, bound);
  }
  if (found.plan.bytes.limited_peak > limit) return search.nothing(Outcome::kUnknown, bound);
  if (!proven) found.complete = false;
  if (!proven && found.plan.time.outcome == Outcome::kOptimal) found.plan.time.outcome = Outcome::kFeasible;
  found.plan.time.bound = bound;
  return found;
}

std::int64_t least_state(const Space& space) {
  std::int64_t sum = 0;
  for (std::size_t t = 0; t < space.program->tensors.size(); ++t) {
    if (space.storage.maker[t] >= 0 || space.storage.counted[t] != Counted::kFull) continue;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    const ProgramTensor& tensor = space.program->tensors[t];
    for (const Code code : all_codes(tensor, space.mesh.axes.size()))
      least = std::min(least, largest_bytes(tensor, code, space.mesh));
    sum += least;
  }
  return sum;
}

}  // namespace stowage
