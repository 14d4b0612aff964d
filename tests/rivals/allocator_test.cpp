#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "graph/liveness.h"
#include "rivals/caching_allocator.h"
#include "support/builder.h"
#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::rivals {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(CachingAllocator, TakesSegmentsByTheSizeOfTheRequest) {
  struct Row {
    std::int64_t request, allocated, reserved;
  };
  for (const Row& row :
       {Row{0, 0, 0}, Row{1, 512, 2 * kMiB}, Row{512, 512, 2 * kMiB}, Row{513, 1024, 2 * kMiB},
        Row{kMiB, kMiB, 2 * kMiB}, Row{kMiB + 1, kMiB + 512, 20 * kMiB}, Row{10 * kMiB - 1, 10 * kMiB, 10 * kMiB},
        Row{9 * kMiB, 9 * kMiB, 20 * kMiB}, Row{10 * kMiB, 10 * kMiB, 10 * kMiB}, Row{11 * kMiB, 12 * kMiB, 12 * kMiB},
        Row{25 * kMiB + 1, 26 * kMiB, 26 * kMiB}}) {
    SCOPED_TRACE(row.request);
    CachingAllocator allocator;
    allocator.allocate(row.request);
    EXPECT_EQ(allocator.reserved_bytes(), row.reserved);
    EXPECT_EQ(allocator.allocated_bytes(), row.allocated);
  }
}

// A remainder of at most 1 MiB is not split off in the large pool: the block keeps it. (Above: 11 MiB take all 12 of
// their segment.)
TEST(CachingAllocator, KeepsSmallRemaindersOfLargeBlocks) {
  CachingAllocator allocator;
  allocator.allocate(25 * kMiB + 1);
  EXPECT_EQ(allocator.allocated_bytes(), 26 * kMiB);
  allocator.allocate(9 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), (26 + 20) * kMiB);
  allocator.allocate(10 * kMiB);  // the 11 MiB left of the second segment
  EXPECT_EQ(allocator.reserved_bytes(), (26 + 20) * kMiB);
  EXPECT_EQ(allocator.allocated_bytes(), (26 + 9 + 11) * kMiB);
}

// Small and large requests never share a segment.
TEST(CachingAllocator, KeepsThePoolsApart) {
  CachingAllocator allocator;
  allocator.release(allocator.allocate(30 * kMiB));
  allocator.allocate(kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 32 * kMiB);
}

//  ├ a 4 ┤├ b 4 ┤├ c 4 ┤├ 8 free ┤     b alone leaves a hole of 4; with c the hole joins the rest: 16
TEST(CachingAllocator, MergesFreeNeighbours) {
  CachingAllocator allocator;
  const auto a = allocator.allocate(4 * kMiB), b = allocator.allocate(4 * kMiB), c = allocator.allocate(4 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 20 * kMiB);
  allocator.release(b);
  allocator.allocate(9 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 40 * kMiB);
  allocator.release(c);
  allocator.allocate(16 * kMiB);  // c's neighbours b and the 8 MiB behind it
  EXPECT_EQ(allocator.reserved_bytes(), 40 * kMiB);
  allocator.release(a);
  EXPECT_EQ(allocator.allocated_bytes(), 25 * kMiB);
}

// Of two holes the smaller one that holds the request is taken, so that the larger one stays whole.
TEST(CachingAllocator, FitsBest) {
  CachingAllocator allocator;
  const auto big = allocator.allocate(40 * kMiB), middle = allocator.allocate(30 * kMiB);
  allocator.release(big);
  allocator.release(middle);
  allocator.allocate(28 * kMiB);
  allocator.allocate(40 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 70 * kMiB);
}

// x 12 MiB lives from op 0 to op 1; op 1 takes scratch of 30 MiB and gives it back before y 30 MiB is born, so both
// share a segment.
TEST(CachingAllocatorPeaks, FollowsTheTicksOfAnOp) {
  testing::GraphBuilder g(64);
  const int x = g.buffer(12 * kMiB), y = g.returned(30 * kMiB);
  g.op({}, {}, {x});
  Op& op = g.op({x}, {}, {y});
  op.ticks = 2;
  op.scratch = {{30 * kMiB, 0, 1}};
  op.born = {1};
  const Graph graph = g.build();
  const AllocatorPeaks peaks = caching_allocator_peaks(graph, program_order(graph));
  EXPECT_EQ(peaks.allocated_bytes, 42 * kMiB);
  EXPECT_EQ(peaks.reserved_bytes, 42 * kMiB);
}

// Live blocks never overlap, and what is reserved covers what is allocated.
TEST(CachingAllocator, ConservesBytesOnRandomRequests) {
  const std::uint64_t seed = testing::first_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  CachingAllocator allocator;
  std::vector<CachingAllocator::Block> live;
  std::int64_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    if (live.size() < 50 && testing::chance(random, 55)) {
      live.push_back(allocator.allocate(testing::draw(random, 1, testing::chance(random, 50) ? 2 * kMiB : 30 * kMiB)));
    } else if (!live.empty()) {
      const auto at = static_cast<std::size_t>(testing::draw(random, 0, std::ssize(live) - 1));
      allocator.release(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    most = std::max(most, allocator.allocated_bytes());
    ASSERT_LE(allocator.allocated_bytes(), allocator.reserved_bytes());
  }
  for (const auto block : live) allocator.release(block);
  EXPECT_EQ(allocator.allocated_bytes(), 0);
  const std::int64_t reserved = allocator.reserved_bytes();
  allocator.allocate(30 * kMiB);  // all segments are whole again: one of them holds it
  EXPECT_EQ(allocator.reserved_bytes(), reserved);
  EXPECT_GT(most, 0);
}

}  // namespace
}  // namespace stowage::rivals
