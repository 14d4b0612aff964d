#include "layout/greedy_family.h"

#include <array>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "layout/list_fit.h"
#include "layout/preferences.h"
#include "layout/sections.h"

namespace stowage {
namespace {

struct Greedy {
  Band band;
  Prefer prefer, rest;
  Gap gap;
};

constexpr Greedy plain(Prefer prefer, Gap gap) { return {Band::kNone, prefer, prefer, gap}; }

constexpr std::size_t kBatch = 4;
constexpr std::array kGreedies = {
    plain(Prefer::kSize, Gap::kLowest),
    plain(Prefer::kTotalSize, Gap::kLowest),
    plain(Prefer::kLifeSize, Gap::kLowest),
    plain(Prefer::kStartSize, Gap::kTightest),

    plain(Prefer::kSizeInput, Gap::kLowest),
    plain(Prefer::kStartSize, Gap::kLowest),
    plain(Prefer::kStartLife, Gap::kTightest),
    plain(Prefer::kStartLife, Gap::kLowest),

    plain(Prefer::kArea, Gap::kLowest),
    plain(Prefer::kSize, Gap::kTightest),
    plain(Prefer::kLifeSize, Gap::kTightest),
    plain(Prefer::kEnd, Gap::kLowest),

    plain(Prefer::kArea, Gap::kTightest),
    plain(Prefer::kSizeInput, Gap::kTightest),
    plain(Prefer::kTotalSize, Gap::kTightest),
    plain(Prefer::kEnd, Gap::kTightest),

    Greedy{Band::kFullest, Prefer::kFreeTime, Prefer::kSize, Gap::kLowest},
    Greedy{Band::kFullest, Prefer::kFreeTime, Prefer::kFreeTime, Gap::kLowest},
    Greedy{Band::kSteps, Prefer::kSizeFreeTime, Prefer::kArea, Gap::kLowest},
    Greedy{Band::kSteps, Prefer::kArea, Prefer::kArea, Gap::kLowest},
};

}  // namespace

Offsets greedy_family(const LayoutInstance& instance, Greedies which, Offsets best, std::int64_t target,
                      std::int64_t& work, int threads, const std::function<bool()>& should_stop) {
  const LayoutInstance reduced = by_sections(instance);  // orders are of the times themselves
  const std::size_t past = which == Greedies::kFirst ? kBatch : kGreedies.size();
  for (std::size_t from = which == Greedies::kOthers ? kBatch : 0; from < past; from += kBatch) {
    if (best.height <= target || work <= 0 || (should_stop && should_stop())) break;
    std::array<Offsets, kBatch> fitted;
    std::array<std::int64_t, kBatch> left;
    left.fill(work);
    parallel_for(kBatch, threads, [&](std::size_t k) {
      const Greedy& greedy = kGreedies[from + k];
      fitted[k] = list_fit(reduced, preference(instance, greedy.band, greedy.prefer, greedy.rest), greedy.gap, left[k],
                           best.height);
    });
    const std::int64_t before = work;
    for (std::size_t k = 0; k < kBatch; ++k) {
      work -= before - left[k];
      if (!fitted[k].at.empty() && fitted[k].height < best.height) best = std::move(fitted[k]);
    }
  }
  return best;
}

}  // namespace stowage
