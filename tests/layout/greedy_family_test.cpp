// The plain greedies by merged gaps against the deliberately plain ones of bench/rivals, on all kinds of layouts.
#include "layout/greedy_family.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "rivals/greedy_fit.h"
#include "rivals/layout_kinds.h"
#include "support/random_layout.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

using rivals::Fit, rivals::Serve, rivals::LayoutKind;

constexpr std::size_t kKinds = std::size(rivals::kLayoutKindNames);
constexpr std::array kServes = {Serve::kSize,  Serve::kArea,      Serve::kLifetime,
                                Serve::kStart, Serve::kStartLife, Serve::kEnd};
constexpr std::int64_t kEndless = std::int64_t{1} << 60;

TEST(FreeGaps, PlacesWhereAScanOfAllNeighboursPlaces) {
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    for (const std::size_t count : {5, 60, 700}) {
      const std::uint64_t seed = first_seed() + count;
      SCOPED_TRACE(std::string(rivals::kLayoutKindNames[kind]) + " " + std::to_string(count) + ", seed " +
                   std::to_string(seed));
      const std::vector<LayoutItem> items = rivals::layout_of_kind(static_cast<LayoutKind>(kind), count, seed);
      for (const Serve serve : kServes)
        for (const Fit fit : {Fit::kFirst, Fit::kBest})
          EXPECT_EQ(rivals::greedy_layout_of_many(items, 1, serve, fit), rivals::greedy_layout(items, 1, serve, fit));
    }
}

TEST(GreedyFamily, IsNeverAboveAPlainGreedyAndTheSameOnAnyNumberOfThreads) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    SCOPED_TRACE(std::string(rivals::kLayoutKindNames[kind]) + ", seed " + std::to_string(first_seed()));
    const std::vector<LayoutItem> items = rivals::layout_of_kind(static_cast<LayoutKind>(kind), 500, first_seed());
    const LayoutInstance instance = make_instance(items, 1);
    const auto run = [&](int threads) {
      std::int64_t work = kEndless;
      const Offsets none{{}, std::numeric_limits<std::int64_t>::max()};
      return greedy_family(instance, Greedies::kAll, none, instance.bound, work, threads, {});
    };
    const Offsets family = run(1);
    EXPECT_EQ(family.at, run(3).at);
    if (family.height == instance.bound) continue;
    for (const Serve serve : kServes)
      for (const Fit fit : {Fit::kFirst, Fit::kBest})
        EXPECT_LE(family.height, rivals::height(items, rivals::greedy_layout(items, 1, serve, fit)));
  }
}

// Above the size from which the family alone is at work.
TEST(Layout, OfManyItemsIsValidAndTheSameOnAnyNumberOfThreads) {
  const std::vector<LayoutItem> items = rivals::layout_of_kind(LayoutKind::kPeriodic, 5200, first_seed());
  LayoutOptions options;
  options.node_budget = 30'000;
  const LayoutResult one = layout(items, options);
  options.threads = 3;
  EXPECT_EQ(one.offsets, layout(items, options).offsets);
  EXPECT_EQ(one.height_bytes, rivals::height(items, one.offsets));
  for (std::size_t i = 0; i < items.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (overlap(items[i], items[j])) {
        ASSERT_TRUE(one.offsets[i] + items[i].bytes <= one.offsets[j] ||
                    one.offsets[j] + items[j].bytes <= one.offsets[i]);
      }
  for (const Fit fit : {Fit::kFirst, Fit::kBest})
    EXPECT_LE(one.height_bytes, rivals::height(items, rivals::greedy_layout(items, 1, Serve::kSize, fit)));
}

}  // namespace
}  // namespace stowage::testing
