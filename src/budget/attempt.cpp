#include "budget/attempt.h"

#include <algorithm>
#include <utility>

#include "budget/retime.h"
#include "budget/schedule.h"
#include "budget/trim.h"

namespace stowage::budget {
namespace {

constexpr std::size_t kMostKept = 6;

}  // namespace

void polish(const Recipes& recipes, Attempt& now, std::int64_t limit, Link link, std::int64_t& work) {
  while (trim(recipes, now.sequence, limit, work) && work > 0) {
  }
  now.ns = schedule(recipes, now.sequence, link, {limit}).step_ns;
  if (now.sequence.swaps.empty()) return;
  Attempt timed = now;
  retime(recipes, timed.sequence, limit, link);
  timed.ns = schedule(recipes, timed.sequence, link, {limit}).step_ns;
  if (timed.ns < now.ns) now = std::move(timed);
}

void Pool::add(Attempt attempt) {
  const auto at = std::upper_bound(best_.begin(), best_.end(), attempt.ns,
                                   [](std::int64_t ns, const Attempt& t) { return ns < t.ns; });
  if (at != best_.begin() && (at - 1)->ns == attempt.ns &&
      (at - 1)->sequence.line.size() == attempt.sequence.line.size())
    return;
  best_.insert(at, std::move(attempt));
  if (best_.size() > kMostKept) best_.pop_back();
}

}  // namespace stowage::budget
