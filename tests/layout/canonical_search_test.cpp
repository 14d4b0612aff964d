// The complete search alone, against brute force: it finds a layout at the least height and proves that there is none
// below.
#include "layout/canonical_search.h"

#include <gtest/gtest.h>

#include "layout/preferences.h"
#include "support/random_layout.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

SearchResult search(const LayoutInstance& instance, std::int64_t capacity, Prefer prefer, std::int64_t work = kPlenty) {
  return canonical_search(instance, capacity, preference(instance, prefer), work, {});
}

TEST(CanonicalSearch, IsExactOnSmallOnesInEveryPreference) {
  for (int i = 0; i < 2500; ++i) {
    const std::uint64_t seed = first_seed() * 100000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::vector<LayoutItem> items =
        i % 4 == 0 ? random_items(random, 4 + i % 5, 7, 12) : full_items(random, 6 + i % 5, 4 + i % 5);
    const LayoutInstance instance = make_instance(items, 1);
    std::int64_t least = instance.bound;
    while (!fits_somehow(items, least)) ++least;
    for (const Prefer prefer : {Prefer::kTotalLifeArea, Prefer::kSize, Prefer::kFreeTime}) {
      const SearchResult found = search(instance, least, prefer);
      ASSERT_EQ(found.outcome, SearchOutcome::kFound);
      EXPECT_LE(found.offsets.height, least);
      expect_valid(instance, found.offsets);
      ASSERT_EQ(search(instance, least - 1, prefer).outcome, SearchOutcome::kNone);
    }
  }
}

// Eight bytes are live at each time; no layout has eight.
TEST(CanonicalSearch, ProvesThatTheBoundCannotBeReached) {
  const std::vector<std::vector<LayoutItem>> sets = {
      {{0, 1, 4}, {0, 2, 4}, {1, 3, 2}, {1, 3, 1}, {2, 3, 1}, {1, 4, 1}, {2, 5, 3}, {4, 5, 1}, {3, 6, 4}, {5, 6, 4}},
      {{0, 1, 3},
       {0, 2, 4},
       {0, 2, 1},
       {1, 3, 2},
       {2, 3, 2},
       {1, 4, 1},
       {2, 5, 3},
       {4, 5, 1},
       {3, 6, 4},
       {5, 6, 2},
       {5, 6, 2}}};
  for (std::vector<LayoutItem> items : sets)
    for (const bool backwards : {false, true}) {
      for (LayoutItem& item : items)
        if (backwards) item = {-item.upper, -item.lower, item.bytes};
      EXPECT_FALSE(fits_somehow(items, 8));
      const LayoutInstance instance = make_instance(items, 1);
      EXPECT_EQ(search(instance, 8, Prefer::kTotalLifeArea).outcome, SearchOutcome::kNone);
      EXPECT_EQ(search(instance, 9, Prefer::kTotalLifeArea).outcome, SearchOutcome::kFound);
      const LayoutResult whole = layout(items, {});
      EXPECT_EQ(whole.outcome, Outcome::kOptimal);
      EXPECT_EQ(whole.lower_bound_bytes, 9);
      LayoutOptions eight;
      eight.capacity = 8;
      EXPECT_EQ(layout(items, eight).outcome, Outcome::kInfeasible);
    }
}

TEST(CanonicalSearch, WideNumbersGiveTheSameAnswers) {
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t seed = first_seed() * 100000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<LayoutItem> items = random_items(random, 12, 10, 30);
    items.push_back({0, 1, 1});  // no common divisor takes the width away again
    std::vector<LayoutItem> wide = items;
    for (std::size_t k = 0; k + 1 < wide.size(); ++k) wide[k].bytes <<= 30;
    const LayoutInstance small = make_instance(items, 1), large = make_instance(wide, 1);
    for (std::int64_t capacity = small.bound; capacity < small.bound + 4; ++capacity) {
      const SearchOutcome outcome = search(large, (capacity - 1) << 30 | 1, Prefer::kTotalLifeArea).outcome;
      ASSERT_NE(outcome, SearchOutcome::kLimit);
      if (outcome == SearchOutcome::kFound) {
        EXPECT_EQ(search(small, capacity, Prefer::kTotalLifeArea).outcome, SearchOutcome::kFound);
      }
    }
  }
}

TEST(CanonicalSearch, RunningOutOfWorkProvesNothing) {
  std::mt19937_64 random(first_seed());
  for (int i = 0; i < 50; ++i) {
    const LayoutInstance instance = make_instance(random_items(random, 40, 20, 100), 1);
    EXPECT_EQ(search(instance, instance.bound, Prefer::kSize, 10).outcome, SearchOutcome::kLimit);
  }
}

}  // namespace
}  // namespace stowage::testing
