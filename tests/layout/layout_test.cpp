// layout() against drawings, brute force, layouts known to exist, and its own mirror images.
#include "stowage/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "support/random_layout.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// All pairs, on purpose.
void expect_valid(const std::vector<LayoutItem>& items, const LayoutResult& result, std::int64_t align) {
  ASSERT_EQ(result.offsets.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(result.offsets[i] % align, 0);
    EXPECT_GE(result.offsets[i], 0);
    if (items[i].bytes > 0 && items[i].upper > items[i].lower) {
      EXPECT_LE(result.offsets[i] + items[i].bytes, result.height_bytes);
    }
    for (std::size_t j = 0; j < i; ++j)
      if (overlap(items[i], items[j])) {
        EXPECT_TRUE(result.offsets[i] + items[i].bytes <= result.offsets[j] ||
                    result.offsets[j] + items[j].bytes <= result.offsets[i])
            << "items " << i << " and " << j;
      }
  }
  EXPECT_LE(result.lower_bound_bytes, result.height_bytes);
}

// An item that becomes narrower as two rects, the rest above.
std::vector<LayoutItem> in_parts(const std::vector<LayoutItem>& items, const std::vector<std::int64_t>& offsets,
                                 std::vector<std::int64_t>& at) {
  std::vector<LayoutItem> parts;
  at.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const LayoutItem& item = items[i];
    const bool narrows =
        item.narrow_bytes < item.bytes && item.lower < item.narrow_from && item.narrow_from < item.upper;
    parts.push_back({item.lower, item.upper, narrows ? item.narrow_bytes : item.bytes});
    at.push_back(offsets[i]);
    if (!narrows) continue;
    parts.push_back({item.lower, item.narrow_from, item.bytes - item.narrow_bytes});
    at.push_back(offsets[i] + item.narrow_bytes);
  }
  return parts;
}

//   5 ┤┌────┐ ┌──┐       b finds room where the rest of a has been: 5 bytes, where a as wide as it begins needs 7.
//   3 ┤│ a  ├─┤b │
//   2 ┤│    └─┴──┤
//     └┴─────────┘
TEST(Layout, WhatANarrowerItemLeavesIsUsed) {
  const std::vector<LayoutItem> items = {{0, 9, 5, 4, 2}, {5, 9, 3}};
  const LayoutResult result = layout(items, {});
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.height_bytes, 5);
  EXPECT_EQ(result.lower_bound_bytes, 5);
}

TEST(Layout, NarrowerItemsAreValidAndNeverWorseThanAsWideAsTheyBegin) {
  std::mt19937_64 random(first_seed());
  int better = 0, met = 0, bounded = 0;
  for (int i = 0; i < 300; ++i) {
    const std::int64_t align = i % 2 == 0 ? 1 : 8;
    std::vector<LayoutItem> wide = random_items(random, 2 + i % 30, 20, 100);
    std::vector<LayoutItem> items = wide;
    for (LayoutItem& item : items) {
      if (random() % 3 != 0 || item.upper - item.lower < 2) continue;
      item.narrow_from = item.lower + 1 +
                         static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(item.upper - item.lower - 1));
      item.narrow_bytes =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(item.bytes + 1)) / align * align;
    }
    LayoutOptions options;
    options.align = align;
    options.node_budget = 2000;
    const LayoutResult result = layout(items, options), plain = layout(wide, options);
    std::vector<std::int64_t> at;
    const std::vector<LayoutItem> parts = in_parts(items, result.offsets, at);
    LayoutResult drawn = result;
    drawn.offsets = at;
    expect_valid(parts, drawn, align);
    EXPECT_LE(result.height_bytes, plain.height_bytes);
    better += result.height_bytes < plain.height_bytes ? 1 : 0;
    met += result.outcome == Outcome::kOptimal ? 1 : 0;
    // Split items are a relaxation: their bound holds for these, too.
    bounded += layout(parts, options).lower_bound_bytes <= result.height_bytes ? 1 : 0;
  }
  EXPECT_GT(better, 50);
  EXPECT_GT(met, 50);
  EXPECT_EQ(bounded, 300);
}

TEST(Layout, NothingNeedsNoBytes) {
  const LayoutResult result = layout({}, {});
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.height_bytes, 0);
}

TEST(Layout, EmptyItemsGetOffsetZero) {
  const LayoutResult result = layout({{0, 5, 10}, {0, 5, 0}, {3, 3, 99}}, {});
  EXPECT_EQ(result.offsets, (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(result.height_bytes, 10);
}

//   3 ┤   ┌─────┐        c lives with a and with b, a and b never together: 3 bytes, not 4.
//   2 ┤┌──┤  c  ├──┐
//     └┴──┴─────┴──┘
TEST(Layout, ItemsThatNeverMeetShareAddresses) {
  const LayoutResult result = layout({{0, 2, 2}, {2, 4, 2}, {1, 3, 1}}, {});
  EXPECT_EQ(result.outcome, Outcome::kOptimal);
  EXPECT_EQ(result.height_bytes, 3);
}

TEST(Layout, SaysSoWhenTheCapacityCannotHold) {
  const std::vector<LayoutItem> items = {{0, 2, 4}, {1, 3, 4}};
  LayoutOptions options;
  options.capacity = 7;
  EXPECT_EQ(layout(items, options).outcome, Outcome::kInfeasible);
  options.capacity = 8;
  EXPECT_EQ(layout(items, options).outcome, Outcome::kOptimal);
}

TEST(Layout, ALimitIsNeverInfeasibility) {
  std::mt19937_64 random(first_seed());
  for (int i = 0; i < 50; ++i) {
    const std::vector<LayoutItem> items = random_items(random, 40, 20, 100);
    LayoutOptions none;
    none.node_budget = 0;
    const LayoutResult quick = layout(items, none);
    expect_valid(items, quick, 1);
    EXPECT_NE(quick.outcome, Outcome::kInfeasible);
    EXPECT_NE(quick.outcome, Outcome::kUnknown);
  }
}

TEST(Layout, SmallOnesAreOptimalWithAndWithoutAlignment) {
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::vector<LayoutItem> items = random_items(random, 4 + i % 4, 5 + i % 5, i % 2 == 0 ? 12 : 4);
    LayoutOptions options;
    options.align = i % 3 == 0 ? 4 : 1;
    const LayoutResult result = layout(items, options);
    const std::int64_t least = least_height(items, options.align);
    expect_valid(items, result, options.align);
    EXPECT_LE(result.lower_bound_bytes, least);
    if (options.align == 1) {
      EXPECT_EQ(result.height_bytes, least);
    }
    if (result.outcome == Outcome::kOptimal) {
      EXPECT_EQ(result.height_bytes, least);
    }
    options.capacity = least - 1;
    const LayoutResult tight = layout(items, options);
    EXPECT_TRUE(tight.outcome == Outcome::kInfeasible || tight.outcome == Outcome::kUnknown);
    options.capacity = least;
    if (options.align == 1) {
      EXPECT_LE(layout(items, options).height_bytes, least);
    }
  }
}

TEST(Layout, FindsLayoutsThatAreKnownToExist) {
  int exact = 0, all = 0;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<LayoutItem> items;
    cut_up(random, {0, 1000, 1000}, 5, items);
    const LayoutResult result = layout(items, {});
    expect_valid(items, result, 1);
    EXPECT_EQ(result.lower_bound_bytes, 1000);
    exact += result.height_bytes == 1000;
    ++all;
  }
  EXPECT_EQ(exact, all);
}

TEST(Layout, TimeBackwardsAndLargerSizesChangeNothingThatIsProven) {
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::vector<LayoutItem> items = random_items(random, 10, 12, 50);
    std::vector<LayoutItem> backwards = items, larger = items;
    for (LayoutItem& item : backwards) item = {-item.upper, -item.lower, item.bytes};
    for (LayoutItem& item : larger) item.bytes *= 1000;
    const LayoutResult a = layout(items, {}), b = layout(backwards, {}), c = layout(larger, {});
    expect_valid(backwards, b, 1);
    if (a.outcome == Outcome::kOptimal && b.outcome == Outcome::kOptimal) {
      EXPECT_EQ(a.height_bytes, b.height_bytes);
    }
    if (a.outcome == Outcome::kOptimal && c.outcome == Outcome::kOptimal) {
      EXPECT_EQ(1000 * a.height_bytes, c.height_bytes);
    }
  }
}

TEST(Layout, TheSameInputGivesTheSameLayout) {
  std::mt19937_64 random(first_seed());
  const std::vector<LayoutItem> items = random_items(random, 200, 60, 1000);
  LayoutOptions options;
  options.node_budget = 50'000;
  EXPECT_EQ(layout(items, options).offsets, layout(items, options).offsets);
}

TEST(Layout, ManyItemsTakeTheFastPath) {
  std::mt19937_64 random(first_seed());
  std::vector<LayoutItem> items;
  for (std::int64_t i = 0; i < cases(40'000, 200'000); ++i)
    items.push_back({i, i + draw(random, 1, 300), draw(random, 1, 1 << 20)});
  const LayoutResult result = layout(items, {});
  EXPECT_EQ(result.offsets.size(), items.size());
  EXPECT_LT(static_cast<double>(result.height_bytes), 1.2 * static_cast<double>(result.lower_bound_bytes));
}

}  // namespace
}  // namespace stowage::testing
