// The filters' choices against a scan of everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "eager/access_history.h"
#include "eager/cost_aware.h"
#include "eager/delta_director.h"
#include "eager/delta_filter.h"
#include "eager/dtr.h"
#include "eager/lru.h"
#include "eager/random.h"
#include "eager/size.h"
#include "support/seed.h"

namespace stowage::eager {
namespace {

// A table with random values, which tells the filter under test what happens to them.
class World {
 public:
  explicit World(std::uint64_t seed, Options options = {}) : table(options), random(seed) {}

  std::int64_t below(std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); }
  ValueId any(const std::vector<ValueId>& of) {
    return of[static_cast<std::size_t>(below(static_cast<std::int64_t>(of.size())))];
  }

  void step(Filter& filter) {
    const std::int64_t what = below(10);
    const bool makes = what < 4 || members.empty();
    std::vector<ValueId> reads;
    if (!makes && what < 9) reads.push_back(any(members));
    table.op_begins(reads);
    table.op_ended(1000);
    for (const ValueId id : reads) filter.accessed(id);
    if (makes) return make();
    if (!reads.empty()) return;
    const ValueId id = any(members);
    table[id].pins == 0 ? table.pin(id) : table.unpin(id);
  }

  void make() {
    const ValueId id = table.created(std::int64_t{64} << below(14));
    if (below(4) != 0) {
      const std::int64_t compute_ns = 100 + below(1'000'000);
      std::vector<ValueId> parents;
      for (int i = 0; i < 2 && !all.empty(); ++i) parents.push_back(any(all));
      table.recipe(id, compute_ns, parents);
    }
    members.push_back(id);
    all.push_back(id);
  }

  void release(ValueId id, How how) {
    std::erase(members, id);
    table.released(id, how);
  }

  // The largest score of what is not pinned; -1: nothing.
  double most(const std::function<double(ValueId)>& score) const {
    double best = -1;
    for (const ValueId id : members)
      if (table[id].pins == 0) best = std::max(best, score(id));
    return best;
  }
  [[nodiscard]] double staleness(ValueId id) const {
    return static_cast<double>(table.tick() - table[id].last_access_tick + 1);
  }

  ValueTable table;
  std::mt19937_64 random;
  std::vector<ValueId> members, all;
};

// Lets `filter` and a scan with `score` choose at random moments.
void compare(std::uint64_t seed, World& world, Filter& filter, const std::function<double(ValueId)>& score,
             double share = 1) {
  world.table.tell(filter);
  for (int i = 0; i < 3000; ++i) {
    world.step(filter);
    if (world.below(5) != 0) continue;
    const auto picked = filter.pick(false);
    const double best = world.most(score);
    ASSERT_EQ(picked.has_value(), best >= 0) << "seed " << seed << " step " << i;
    if (!picked) continue;
    ASSERT_EQ(world.table[*picked].pins, 0);
    ASSERT_GE(score(*picked), best * share * (1 - 1e-12)) << "seed " << seed << " step " << i;
    world.release(*picked, world.table[*picked].recomputable ? How::kDrop : How::kSwap);
  }
}

TEST(Filters, DeltaPicksTheLargestBytesTimesStaleness) {
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 4; ++seed) {
    World world(seed);
    DeltaFilter filter(world.table);
    compare(seed, world, filter, [&](ValueId id) {
      std::int64_t bytes = 0;
      for (const ValueId m : world.members) bytes += world.table[m].bytes;
      const bool small = world.table[id].bytes < bytes / static_cast<std::int64_t>(world.members.size()) / 100;
      const double score = static_cast<double>(world.table[id].bytes) * world.staleness(id);
      return small ? score * 1e-12 : score;  // after all others
    });
  }
}

TEST(Filters, LruPicksTheOldestAndSizeTheLargest) {
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 4; ++seed) {
    World a(seed), b(seed);
    LruFilter lru(a.table);
    compare(seed, a, lru, [&](ValueId id) { return a.staleness(id); });
    SizeFilter size(b.table);
    compare(seed, b, size, [&](ValueId id) { return static_cast<double>(b.table[id].bytes); });
  }
}

TEST(Filters, RandomPicksEachMemberAboutAsOften) {
  World world(testing::first_seed());
  RandomFilter filter(world.table);
  world.table.tell(filter);
  for (int i = 0; i < 10; ++i) world.table.created(64);
  std::vector<int> times(10, 0);
  for (int i = 0; i < 10'000; ++i) ++times[filter.pick(false)->index()];
  EXPECT_GT(*std::min_element(times.begin(), times.end()), 850);
  EXPECT_LT(*std::max_element(times.begin(), times.end()), 1150);
}

// Sum over the dropped values that hang together with v, found anew each time.
double naive_neighbourhood_ns(const World& world, ValueId v) {
  const auto dropped = [&](ValueId id) { return world.table[id].residence == Residence::kDropped; };
  const auto neighbours = [&](ValueId id) {
    std::vector<ValueId> found = world.table[id].parents;
    for (const ValueId other : world.all)
      if (const auto& p = world.table[other].parents; std::find(p.begin(), p.end(), id) != p.end())
        found.push_back(other);
    return found;
  };
  std::set<ValueId> seen;
  std::vector<ValueId> stack = neighbours(v);
  double sum = 0;
  while (!stack.empty()) {
    const ValueId id = stack.back();
    stack.pop_back();
    if (!dropped(id) || !seen.insert(id).second) continue;
    sum += static_cast<double>(world.table[id].compute_ns);
    for (const ValueId n : neighbours(id)) stack.push_back(n);
  }
  return sum;
}

TEST(Filters, DtrCountsTheEvictedNeighbourhood) {
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 3; ++seed) {
    World world(seed);
    DtrFilter filter(world.table);
    world.table.tell(filter);
    for (int i = 0; i < 600; ++i) {
      world.step(filter);
      if (i % 3 != 0) continue;
      const auto picked = filter.pick(false);
      if (!picked) continue;
      const Row& v = world.table[*picked];
      const double expected = v.recomputable
                                  ? static_cast<double>(v.compute_ns) + 1 + naive_neighbourhood_ns(world, *picked)
                                  : static_cast<double>(2 * world.table.copy_ns(v.bytes));
      ASSERT_NEAR(filter.cost_ns(*picked), expected, 1e-6 * expected) << "seed " << seed << " step " << i;
      const double best = world.most([&](ValueId id) {
        return static_cast<double>(world.table[id].bytes) / filter.cost_ns(id) * world.staleness(id);
      });
      ASSERT_GE(static_cast<double>(v.bytes) / expected * world.staleness(*picked), best * (1 - 1e-9))
          << "seed " << seed << " step " << i;
      world.release(*picked, v.recomputable ? How::kDrop : How::kSwap);
    }
  }
}

TEST(Filters, DeltaDirectorRecomputesWhatIsQuickerToComputeThanToCopyTwice) {
  Options options;
  options.link_bytes_per_ns = 10;
  options.link_latency_ns = 0;
  ValueTable table(options);
  DeltaDirector director(table);
  const ValueId id = table.created(1'000'000);  // 100 us each way
  table.recipe(id, 150'000, {});
  EXPECT_DOUBLE_EQ(director.ratio(id), 200.0 / 150);
  EXPECT_EQ(director.choose(id), How::kDrop);
  table.recipe(id, 250'000, {});
  EXPECT_EQ(director.choose(id), How::kSwap);
  table.released(id, How::kSwap);
  table.restored(id, How::kSwap, 200'000);  // measured: 300 us out and in
  EXPECT_EQ(director.choose(id), How::kDrop);
}

// The default looks at a few of each class only: how much of the best choice is that worth, over random worlds with
// nothing foretold?
TEST(Filters, DefaultPicksNearTheLeastPriceOverRelief) {
  double ratio = 0;
  int n = 0;
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 3; ++seed) {
    World world(seed);
    AccessHistory history(world.table);
    CostAware filter(world.table, history);
    world.table.tell(filter);
    for (int i = 0; i < 2000; ++i) {
      world.step(filter);
      if (i % 4 != 0) continue;
      const auto picked = filter.pick(false);
      if (!picked) continue;
      ratio += std::log(filter.score(*picked) * world.most([&](ValueId id) { return 1 / filter.score(id); }));
      ++n;
      world.release(*picked, filter.choose(*picked));
    }
  }
  RecordProperty("geometric_mean_score_over_best", std::to_string(std::exp(ratio / n)));
  EXPECT_LT(std::exp(ratio / n), 1.5);
}

}  // namespace
}  // namespace stowage::eager
