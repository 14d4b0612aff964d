// Guided ejection alone: valid, never higher, never below what brute force finds; and what it is worth.
#include "layout/guided_ejection.h"

#include <gtest/gtest.h>

#include "layout/list_fit.h"
#include "layout/preferences.h"
#include "rivals/layout_kinds.h"
#include "support/random_layout.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// One above the other: the worst start.
Offsets stack(const LayoutInstance& instance) {
  Offsets result;
  for (const Rect& r : instance.rects) {
    result.at.push_back(result.height);
    result.height += r.bytes;
  }
  return result;
}

TEST(GuidedEjection, FindsWhatBruteForceFindsOnNearlyAllSmallOnes) {
  int least = 0, all = 0;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::vector<LayoutItem> items = random_items(random, 4 + i % 4, 5 + i % 5, 12);
    const LayoutInstance instance = make_instance(items, 1);
    std::int64_t work = 300'000;
    const Offsets found = guided_ejection(instance, stack(instance), instance.bound, work, 1, {});
    expect_valid(instance, found);
    const std::int64_t known = least_height(items, 1);
    EXPECT_GE(found.height, known);
    least += found.height == known;
    ++all;
  }
  EXPECT_GE(least, all * 95 / 100);
}

// Size first ends some percent above the bound. A third of that is gone soon.
TEST(GuidedEjection, LowersWhatAGreedyLeavesAndIsTheSameOnAnyNumberOfThreads) {
  const auto items = rivals::layout_of_kind(rivals::LayoutKind::kRandom, 2000, first_seed());
  const LayoutInstance instance = make_instance(items, 1);
  std::int64_t endless = std::int64_t{1} << 60;
  const Offsets greedy = list_fit(instance, preference(instance, Prefer::kSize), Gap::kLowest, endless);
  const auto run = [&](int threads) {
    std::int64_t work = 300'000'000;
    return guided_ejection(instance, greedy, instance.bound, work, threads, {});
  };
  const Offsets found = run(1);
  expect_valid(instance, found);
  EXPECT_EQ(found.at, run(2).at);
  EXPECT_LE(3 * (found.height - instance.bound), 2 * (greedy.height - instance.bound));
}

TEST(GuidedEjection, StopsWhenTold) {
  const auto items = rivals::layout_of_kind(rivals::LayoutKind::kRandom, 300, first_seed());
  const LayoutInstance instance = make_instance(items, 1);
  std::int64_t work = std::int64_t{1} << 60;
  const Offsets start = stack(instance);
  EXPECT_EQ(guided_ejection(instance, start, instance.bound, work, 1, [] { return true; }).at, start.at);
}

}  // namespace
}  // namespace stowage::testing
