#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "rivals/greedy_fit.h"
#include "rivals/llfb.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::rivals {
namespace {

using Items = std::vector<LayoutItem>;
using Offsets = std::vector<std::int64_t>;

//  3 ┤    ┌──┐         the longest-lived [0,4) lies at the bottom, [0,2) and [2,4) on it; the ledge over [0,2) is lower,
//  2 ┤┌──┐│ d│         so [0,1) goes there
//  1 ┤│b └┴──┤c
//  0 ┤└──a───┘
TEST(Llfb, PutsTheLongestLivedOnTheLowestLedge) {
  const Items items = {{0, 4, 10}, {0, 2, 5}, {2, 4, 8}, {0, 1, 3}};
  EXPECT_EQ(llfb_layout(items, 1), (Offsets{0, 10, 10, 15}));
}

// No item fits into the notch between two towers: it is raised to the lower of them, and the long item goes on top.
TEST(Llfb, RaisesALedgeThatNothingFits) {
  const Items items = {{0, 3, 4}, {5, 9, 6}, {2, 6, 1}};
  // [5,9) is the longest with [2,6): equal lifetimes, the larger first; then the lowest ledge is [0,5), which holds
  // [0,3).
  EXPECT_EQ(llfb_layout(items, 1), (Offsets{0, 0, 6}));
}

TEST(Llfb, IgnoresWhatTakesNoSpaceAndRoundsToTheAlignment) {
  const Items items = {{0, 2, 5}, {0, 2, 0}, {1, 1, 9}, {1, 3, 5}};
  const Offsets offsets = llfb_layout(items, 8);
  EXPECT_EQ(offsets[0] % 8 + offsets[3] % 8, 0);
  EXPECT_EQ(std::abs(offsets[0] - offsets[3]), 8);
}

// By size: 10 at 0; 6 on it; then the fives: [0,2) at 16, [2,4) below the 6; 4 above all that it meets; the gaps left
// for the last one over [2,3) are [5,10) and [16,21), and the lower of equals is taken.
TEST(GreedyFit, PlacesBySizeIntoTheGapsBelow) {
  const Items items = {{0, 2, 10}, {0, 3, 6}, {0, 2, 5}, {1, 4, 4}, {2, 4, 5}, {2, 3, 1}};
  for (const Fit fit : {Fit::kFirst, Fit::kBest})
    EXPECT_EQ(greedy_layout(items, 1, Serve::kSize, fit), (Offsets{0, 10, 16, 21, 0, 5}));
}

TEST(GreedyFit, BestFitTakesTheTighterGap) {
  // Stacked as they start: 4, 1, 2, 1. At time 4 the first and third are gone and leave gaps of 4 and 2 to the last
  // one.
  const Items by_start = {{0, 4, 4}, {1, 9, 1}, {2, 4, 2}, {3, 9, 1}, {4, 9, 2}};
  const Offsets first = greedy_layout(by_start, 1, Serve::kStart, Fit::kFirst);
  const Offsets best = greedy_layout(by_start, 1, Serve::kStart, Fit::kBest);
  EXPECT_EQ(first, (Offsets{0, 4, 5, 7, 0}));
  EXPECT_EQ(best, (Offsets{0, 4, 5, 7, 5}));
}

bool overlaps(const LayoutItem& a, std::int64_t at_a, const LayoutItem& b, std::int64_t at_b) {
  return a.lower < b.upper && b.lower < a.upper && at_a < at_b + b.bytes && at_b < at_a + a.bytes;
}

TEST(Layouts, NeverOverlapAndKeepTheAlignment) {
  const std::uint64_t seed = testing::first_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    Items items;
    for (auto i = testing::draw(random, 1, 40); i > 0; --i) {
      const auto lower = testing::draw(random, 0, 20);
      items.push_back({lower, lower + testing::draw(random, 0, 10), testing::draw(random, 0, 30)});
    }
    const std::int64_t align = testing::draw(random, 1, 8);
    std::vector<Offsets> layouts = {llfb_layout(items, align)};
    for (const Serve serve : {Serve::kSize, Serve::kArea, Serve::kLifetime, Serve::kStart})
      for (const Fit fit : {Fit::kFirst, Fit::kBest}) layouts.push_back(greedy_layout(items, align, serve, fit));
    for (const Offsets& offsets : layouts)
      for (std::size_t a = 0; a < items.size(); ++a) {
        EXPECT_EQ(offsets[a] % align, 0);
        for (std::size_t b = 0; b < a; ++b)
          EXPECT_FALSE(items[a].bytes > 0 && items[b].bytes > 0 && items[a].lower < items[a].upper &&
                       items[b].lower < items[b].upper && overlaps(items[a], offsets[a], items[b], offsets[b]));
      }
  }
}

}  // namespace
}  // namespace stowage::rivals
