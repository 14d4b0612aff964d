// Block sets against an array of addresses, with as many blocks as make chunks.
#include "layout/block_set.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "support/random_layout.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

std::int64_t naive_lift(const std::vector<char>& taken, std::int64_t from, std::int64_t bytes) {
  for (std::int64_t free = 0, at = from;; ++at) {
    const bool is_taken = at < static_cast<std::int64_t>(taken.size()) && taken[static_cast<std::size_t>(at)] != 0;
    free = is_taken ? 0 : free + 1;
    if (free == bytes) return at - bytes + 1;
  }
}

TEST(BlockSet, FindsTheGapsThatAScanFinds) {
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr std::int64_t kMost = 4000;
    std::vector<char> taken(kMost, 0);
    BlockSet set;
    const std::int64_t longest = i % 3 == 0 ? 2 : i % 3 == 1 ? 12 : 400;
    for (int k = 0; k < 1500; ++k) {
      const std::int64_t begin = draw(random, 0, kMost - longest), end = begin + draw(random, 1, longest);
      set.add(begin, end);
      std::fill(taken.begin() + begin, taken.begin() + end, 1);
      if (k % 25 != 0) continue;
      BlockSet::Cursor cursor(set);
      std::int64_t looked = 0, from = 0;
      while (from < kMost) {
        const std::int64_t bytes = draw(random, 1, 20), at = cursor.lift(from, bytes, looked);
        ASSERT_EQ(at, naive_lift(taken, from, bytes));
        std::int64_t gap_end = at;
        while (gap_end < kMost && taken[static_cast<std::size_t>(gap_end)] == 0) ++gap_end;
        ASSERT_EQ(cursor.gap_end(), gap_end == kMost ? std::numeric_limits<std::int64_t>::max() : gap_end);
        from = at + draw(random, 1, 60);
      }
    }
  }
}

TEST(BlockSet, AnEmptySetIsOneGap) {
  const BlockSet set;
  std::int64_t looked = 0;
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(BlockSet::Cursor(set).lift(7, 100, looked), 7);
}

}  // namespace
}  // namespace stowage::testing
