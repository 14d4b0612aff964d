// Windows alone, on mountains: a core without a hole between slopes with room.
#include "layout/core_window.h"

#include <gtest/gtest.h>

#include <limits>

#include "layout/canonical_search.h"
#include "layout/preferences.h"
#include "support/random_layout.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

constexpr std::int64_t kNoCeiling = std::numeric_limits<std::int64_t>::max();

//        ┌────┐          20 items cross the core, 1000 bytes full at every time of it; what lies on the slopes is as high
//     ▁▂▃│core│▃▂▁       as half of the core at most.
std::vector<LayoutItem> mountain(std::mt19937_64& random) {
  const auto below = [&random](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::vector<LayoutItem> items;
  cut_up(random, {400, 600, 1000}, 4, items);
  for (int k = 0; k < 20; ++k) items.push_back({below(400), 601 + below(400), 1 + below(100)});
  for (int k = 0; k < 40; ++k) {
    const std::int64_t lower = below(380) + (k % 2 == 0 ? 0 : 600);
    items.push_back({lower, lower + 1 + below(20), 1 + below(25)});
  }
  return items;
}

// All pairs, on purpose.
bool overlaps_nowhere(const LayoutInstance& instance, const Offsets& offsets) {
  const auto& rects = instance.rects;
  for (std::size_t i = 0; i < rects.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (rects[i].lower < rects[j].upper && rects[j].lower < rects[i].upper &&
          offsets.at[i] < offsets.at[j] + rects[j].bytes && offsets.at[j] < offsets.at[i] + rects[i].bytes)
        return false;
  return true;
}

TEST(CoreWindow, MeetsTheBoundOfMountainsWhoseCoreIsSolved) {
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const LayoutInstance instance = make_instance(mountain(random), 1);
    std::int64_t asked = 0, work = std::int64_t{1} << 40;
    const auto search = [&](const LayoutInstance& window, std::int64_t target) {
      ++asked;
      EXPECT_LE(window.bound, target);
      EXPECT_LT(window.rects.size(), instance.rects.size() / 2);
      std::int64_t left = std::int64_t{1} << 40;
      return canonical_search(window, target, preference(window, Prefer::kTotalLifeArea), left, {}).offsets;
    };
    const std::vector<Packing> packings = core_window(instance, instance.bound, search, kNoCeiling, work);
    ASSERT_FALSE(packings.empty());
    EXPECT_GE(asked, 1);
    EXPECT_EQ(packings[0].offsets.height, instance.bound);
    for (const Packing& packing : packings) {
      EXPECT_TRUE(overlaps_nowhere(instance, packing.offsets));
      EXPECT_EQ(packing.order.size(), instance.rects.size());
    }
  }
}

TEST(CoreWindow, StopsWhenTheWorkRunsOut) {
  std::mt19937_64 random(first_seed());
  const LayoutInstance instance = make_instance(mountain(random), 1);
  std::int64_t work = 0;
  const auto flat = [](const LayoutInstance& window, std::int64_t) {
    std::int64_t plenty = std::int64_t{1} << 40;
    return portfolio(window, window.bound, plenty)[0].offsets;
  };
  EXPECT_TRUE(core_window(instance, instance.bound, flat, kNoCeiling, work).empty());
}

}  // namespace
}  // namespace stowage::testing
