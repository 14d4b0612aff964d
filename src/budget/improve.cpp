#include "budget/improve.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "budget/cover.h"
#include "budget/trim.h"

namespace stowage::budget {
namespace {

constexpr double kWorse = 0.03;        // of what the best costs more than it must, that one to go on from may cost more
constexpr double kLeastStretch = 4.0;  // positions

}  // namespace

void improve(const Recipes& recipes, Attempt start, const ImproveOptions& options, std::int64_t& work,
             const std::function<bool(const Attempt&)>& found) {
  Random random(options.seed + 1);
  const auto stopped = [&] { return options.should_stop && options.should_stop(); };
  const std::int64_t all = std::max<std::int64_t>(work, 1);
  Attempt from = std::move(start);
  std::int64_t best = from.ns;
  for (std::int64_t i = 0; i < options.tries && best > options.least_ns && work > 0 && !stopped(); ++i) {
    Attempt now = from;
    const auto size = static_cast<double>(now.sequence.line.size());
    const auto length = std::min(size, kLeastStretch * std::pow(std::max(1.0, size / kLeastStretch), random.unit()));
    const auto first = random.below(1 + static_cast<std::int64_t>(size - length));
    work -= 300 * static_cast<std::int64_t>(size);
    undo(recipes, now.sequence, static_cast<std::int32_t>(first),
         static_cast<std::int32_t>(static_cast<double>(first) + std::ceil(length)));
    CoverRule rule;
    rule.swap = options.link.there();
    rule.lane_price = options.lane_price * std::exp2(4 * random.unit() - 2);
    rule.noise = 0.6 * random.unit();
    rule.keep_inputs = random.below(4) == 0;
    rule.most_cost = 2 * (from.ns - options.least_ns);
    rule.seed = options.seed + static_cast<std::uint64_t>(i) + 1;
    if (!cover(recipes, now.sequence, options.limit, options.link, rule, work)) continue;
    polish(recipes, now, options.limit, options.link, work);
    const double progress = std::max(static_cast<double>(i) / static_cast<double>(options.tries),
                                     1 - static_cast<double>(work) / static_cast<double>(all));
    const auto slack = static_cast<std::int64_t>(kWorse * (1 - std::min(progress, 1.0)) *
                                                 static_cast<double>(best - options.least_ns));
    const bool better = now.ns < best, best_from_now_on = found(now);
    if (better ? best_from_now_on : now.ns <= best + slack) {
      best = std::min(best, now.ns);
      from = std::move(now);
    }
  }
}

}  // namespace stowage::budget
