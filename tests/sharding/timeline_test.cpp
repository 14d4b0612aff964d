// The timeline of kernels and collectives: by hand, and against what must hold for any.
#include "sharding/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/random_graph.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// Tensor 0: a parameter. Kernels 0 and 1 make 1 and 2; kernel 1 wants 0 gathered.
std::vector<KernelTurn> two_kernels() {
  std::vector<KernelTurn> turns(2);
  turns[0] = {.ns = 10, .makes = {1}};
  turns[1] = {.ns = 10, .before = {{.tensor = 0, .bytes = 4, .legs = {{0, 2, 5}}}}, .reads = {1}, .makes = {2}};
  return turns;
}

TEST(ShardingTimeline, AGatherRunsBesideTheKernelBefore) {
  const OverlapTimeline line = make_timeline(two_kernels(), {0, 1, 2}, 1, 4);
  EXPECT_EQ(line.ns, 20);
  EXPECT_EQ(line.links, std::vector<double>{7});
  EXPECT_EQ(line.beside, (std::vector<std::int64_t>{4, 0}));
}

TEST(ShardingTimeline, WhatIsLargerThanABucketWaits) {
  const OverlapTimeline line = make_timeline(two_kernels(), {0, 1, 2}, 1, 3);
  EXPECT_EQ(line.ns, 27);
  EXPECT_EQ(line.waited, (std::vector<double>{0, 7}));
  EXPECT_EQ(line.beside, (std::vector<std::int64_t>{0, 0}));
}

TEST(ShardingTimeline, NothingIsBroughtAheadOfWhatMakesIt) {
  std::vector<KernelTurn> turns = two_kernels();
  turns[0].makes = {0};
  turns[1].reads = {};
  EXPECT_EQ(make_timeline(turns, {0, 1, 2}, 1, 100).ns, 27);
}

TEST(ShardingTimeline, NothingIsBroughtAheadOfWhatChangesItsStorage) {
  std::vector<KernelTurn> turns = two_kernels();
  turns[0].writes = {1};  // a view of tensor 0
  turns[0].makes = {};
  turns[1].reads = {};
  EXPECT_EQ(make_timeline(turns, {0, 0, 2}, 1, 100).ns, 27);
}

TEST(ShardingTimeline, ThroughAViewOnlyItsBaseMatters) {
  std::vector<KernelTurn> turns = two_kernels();
  KernelTurn view{.still = true, .reads = {0}, .makes = {3}};
  turns[1].before[0].tensor = 3;
  turns.insert(turns.begin() + 1, view);
  const OverlapTimeline line = make_timeline(turns, {0, 1, 2, 0}, 1, 4);
  EXPECT_EQ(line.ns, 20);
  EXPECT_EQ(line.beside, (std::vector<std::int64_t>{4, 4, 0}));
}

// Kernels that take no time, so that what comes after them is not needed soon.
void wait_a_while(std::vector<KernelTurn>& turns, std::size_t place) {
  turns.insert(turns.begin() + static_cast<std::ptrdiff_t>(place), 4, KernelTurn{});
}

std::vector<std::int64_t> last_of(const std::vector<std::int64_t>& all, std::ptrdiff_t count) {
  return {all.end() - count, all.end()};
}

// Each kernel wants a parameter of its own. A bucket of one: the next one's is issued as this one's kernel is next.
TEST(ShardingTimeline, OneBucketAhead) {
  std::vector<KernelTurn> turns(4);
  for (std::size_t i = 0; i < 4; ++i)
    turns[i] = {.ns = 10, .before = {{.tensor = i, .bytes = 4, .legs = {{0, 3, 14}}}}, .makes = {4 + i}};
  wait_a_while(turns, 0);
  const std::vector<std::size_t> roots = {0, 1, 2, 3, 4, 5, 6, 7};
  const OverlapTimeline ones = make_timeline(turns, roots, 1, 4);
  EXPECT_EQ(ones.ns, 17 + 17 + 17 + 17 + 10);  // the link is always busy
  EXPECT_EQ(last_of(ones.beside, 5), (std::vector<std::int64_t>{4, 4, 4, 4, 0}));
  const OverlapTimeline twos = make_timeline(turns, roots, 1, 8);
  EXPECT_EQ(twos.links, std::vector<double>{2 * (3 + 28)});
  EXPECT_EQ(last_of(twos.beside, 5), (std::vector<std::int64_t>{8, 12, 8, 4, 0}));
}

TEST(ShardingTimeline, ABucketIsOneCollectiveOnEachAxis) {
  std::vector<KernelTurn> turns(2);
  turns[0] = {.ns = 100, .makes = {2}};
  turns[1] = {.ns = 10,
              .before = {{.tensor = 0, .bytes = 4, .legs = {{0, 3, 4}, {1, 1, 1}}},
                         {.tensor = 1, .bytes = 4, .legs = {{0, 3, 5}, {1, 1, 2}}}},
              .makes = {3}};
  const auto with = [&] { return make_timeline(turns, {0, 1, 2, 3}, 2, 8); };
  EXPECT_EQ(with().links, (std::vector<double>{3 + 4 + 3 + 5, 1 + 1 + 1 + 2}));  // needed soon: by themselves
  wait_a_while(turns, 1);
  EXPECT_EQ(with().ns, 110);
  EXPECT_EQ(with().links, (std::vector<double>{3 + 4 + 5, 1 + 1 + 2}));
}

TEST(ShardingTimeline, ScattersAreCollectedAndDeferred) {
  std::vector<KernelTurn> turns(4);
  for (std::size_t i = 0; i < 4; ++i) {
    turns[i] = {.ns = 10, .makes = {i}};
    turns[i].after = {{.tensor = i, .bytes = 4, .legs = {{0, 5, 10}}}};
  }
  const auto with = [&](std::int64_t bucket) { return make_timeline(turns, {0, 1, 2, 3}, 1, bucket); };
  EXPECT_EQ(with(8).links, std::vector<double>{2 * (5 + 10 + 10)});
  EXPECT_EQ(with(8).ns, 30 + 25 + 25);  // of 0 and 1 when 2 has ended; of 2 and 3 at the end
  EXPECT_EQ(with(8).beside, (std::vector<std::int64_t>{0, 4, 8, 12}));
  EXPECT_EQ(with(4).ns, 20 + 4 * 15);  // that of 0 is launched when 1 has ended, that of 1 once it has arrived
  EXPECT_EQ(with(4).waited, (std::vector<double>{0, 0, 0, 5}));
  EXPECT_EQ(with(4).beside, (std::vector<std::int64_t>{0, 4, 8, 8}));
  EXPECT_EQ(with(3).ns, 4 * (10 + 15));
  EXPECT_EQ(with(3).beside, (std::vector<std::int64_t>{0, 0, 0, 0}));
  turns.push_back({.ns = 10, .reads = {0}});  // three kernels later: soon, so that it is launched at once
  EXPECT_EQ(with(100).waited, (std::vector<double>{0, 0, 0, 0, 0}));
  EXPECT_EQ(with(100).beside, (std::vector<std::int64_t>{0, 4, 8, 12, 12}));
  wait_a_while(turns, 4);  // now it is collected, and all of its bucket comes with it
  EXPECT_EQ(with(100).waited.back(), 5 + 40);
}

TEST(ShardingTimeline, AViewOfWhatIsCollectedNeedsNothing) {
  std::vector<KernelTurn> turns(4);
  turns[0] = {.ns = 10, .after = {{.tensor = 0, .bytes = 4, .legs = {{0, 5, 10}}}}, .makes = {0}};
  turns[1] = {.still = true, .reads = {0}, .makes = {1}};
  turns[2] = {.ns = 10, .makes = {2}};
  turns[3] = {.ns = 10, .reads = {1}, .makes = {3}};
  EXPECT_EQ(make_timeline(turns, {0, 1, 2, 3}, 1, 8).waited.back(), 5);  // soon: launched at 10, there at 25
  wait_a_while(turns, 3);
  EXPECT_EQ(make_timeline(turns, {0, 1, 2, 3}, 1, 8).waited.back(), 15);  // launched when it is needed
}

TEST(ShardingTimeline, AxesHaveLinksOfTheirOwn) {
  std::vector<KernelTurn> turns = two_kernels();
  turns[1].before.push_back({.tensor = 3, .bytes = 4, .legs = {{1, 0, 9}}});
  const std::vector<std::size_t> roots = {0, 1, 2, 3};
  EXPECT_EQ(make_timeline(turns, roots, 2, 0).ns, 29);
  EXPECT_EQ(make_timeline(turns, roots, 2, 8).ns, 20);
  turns[1].before.back().legs[0].axis = 0;
  EXPECT_EQ(make_timeline(turns, roots, 2, 0).ns, 36);
}

std::vector<KernelTurn> random_turns(std::mt19937_64& random, std::size_t axes, std::vector<std::size_t>& roots) {
  const auto below = [&](std::int64_t n) { return static_cast<std::size_t>(draw(random, 0, n - 1)); };
  for (std::size_t t = 0; t < 4; ++t) roots.push_back(t);
  std::vector<KernelTurn> turns;
  const auto bring = [&](std::size_t t) {
    Bringing made{.tensor = t, .bytes = draw(random, 1, 9), .legs = {}};
    for (std::size_t n = 1 + below(2); n > 0; --n)
      made.legs.push_back({below(static_cast<std::int64_t>(axes)),
                           axes == 1 ? 0.0 : static_cast<double>(draw(random, 0, 9)),
                           static_cast<double>(draw(random, 1, 20))});
    return made;
  };
  for (std::size_t i = 2 + below(12); i > 0; --i) {
    KernelTurn& turn = turns.emplace_back();
    turn.still = axes > 1 && below(4) == 0;
    turn.ns = turn.still ? 0 : static_cast<double>(draw(random, 1, 20));
    const std::size_t first = below(static_cast<std::int64_t>(roots.size()));
    for (std::size_t n = 0; n <= below(3); ++n) {
      const std::size_t t = n == 0 ? first : below(static_cast<std::int64_t>(roots.size()));
      if (below(2) == 0)
        turn.before.push_back(bring(t));
      else
        turn.reads.push_back(t);
    }
    turn.makes.push_back(roots.size());
    roots.push_back(turn.still ? roots[first] : roots.size());
    if (below(3) == 0) turn.after.push_back(bring(turn.makes[0]));
    if (!turn.still && below(5) == 0 && !turn.reads.empty()) turn.writes.push_back(turn.reads[0]);
  }
  return turns;
}

TEST(ShardingTimeline, LiesBetweenTheBusiestAndTheSum) {
  const std::uint64_t seed = first_seed();
  int overlapped = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    std::mt19937_64 random(seed + i);
    const std::size_t axes = 1 + i % 3;
    std::vector<std::size_t> roots;
    const std::vector<KernelTurn> turns = random_turns(random, axes, roots);
    double kernels = 0;
    for (const KernelTurn& turn : turns) kernels += turn.ns;
    double all = kernels;
    std::vector<double> least(axes, 0);
    for (const KernelTurn& turn : turns)
      for (const auto* side : {&turn.before, &turn.after})
        for (const Bringing& what : *side)
          for (const Leg& leg : what.legs) all += leg.latency_ns + leg.bytes_ns, least[leg.axis] += leg.bytes_ns;
    for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{6}, largest_copies(turns), std::int64_t{1000}}) {
      const OverlapTimeline line = make_timeline(turns, roots, axes, bucket);
      EXPECT_GE(line.ns, kernels);
      EXPECT_GE(line.ns, *std::max_element(line.links.begin(), line.links.end()));
      EXPECT_LE(line.ns, all);
      for (std::size_t a = 0; a < axes; ++a) EXPECT_GE(line.links[a], least[a]);
      if (bucket == 0 && axes == 1) {  // neither views nor latencies then
        EXPECT_EQ(line.ns, all);
      }
      if (line.ns < all) ++overlapped;
    }
  }
  EXPECT_GT(overlapped, 1000);
}

}  // namespace
}  // namespace stowage::testing
