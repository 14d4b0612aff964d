// What the history foretells against what really comes, and the order in which DELTA's prefetch follows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "eager/access_history.h"
#include "eager/delta_prefetch.h"
#include "support/seed.h"

namespace stowage::eager {
namespace {

// Programs of ops with fixed operands; each op makes nothing and reads persistent values.
struct Reader {
  explicit Reader(AccessHistory& h, ValueTable& t) : history(h), table(t) {}
  void run(std::uint64_t signature, const std::vector<ValueId>& reads) {
    table.op_begins(reads);
    history.op_begins(signature, reads);
    table.op_ended(static_cast<std::int64_t>(100 * signature));
    history.op_ended({});
  }
  AccessHistory& history;
  ValueTable& table;
};

TEST(AccessHistory, ForetellsTheNextUseOnceAnIterationHasRepeated) {
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 5; ++seed) {
    std::mt19937_64 random(seed);
    ValueTable table({});
    AccessHistory history(table);
    Reader reader(history, table);
    std::vector<ValueId> values;
    for (int i = 0; i < 20; ++i) values.push_back(table.created(64));
    std::vector<std::pair<std::uint64_t, std::vector<ValueId>>> program(100);
    for (auto& [signature, reads] : program) {
      signature = random() % 8;
      for (std::uint64_t i = 0; i < 1 + random() % 3; ++i) reads.push_back(values[random() % values.size()]);
    }
    for (int iteration = 0; iteration < 6; ++iteration)
      for (std::size_t at = 0; at < program.size(); ++at) {
        reader.run(program[at].first, program[at].second);
        if (iteration < 4) continue;
        for (const ValueId id : program[at].second) {
          std::size_t ahead = 1;
          std::int64_t ns = 0;
          const auto reads = [&](std::size_t i) {
            return std::count(program[i % 100].second.begin(), program[i % 100].second.end(), id) > 0;
          };
          for (; !reads(at + ahead); ++ahead) ns += static_cast<std::int64_t>(100 * program[(at + ahead) % 100].first);
          // Twice in one op
          if (reads(at) && std::count(program[at].second.begin(), program[at].second.end(), id) > 1) continue;
          ASSERT_EQ(history.next_tick(id), table.tick() + static_cast<std::int64_t>(ahead))
              << "seed " << seed << " at " << at;
          ASSERT_EQ(history.next_ns(id) - table.now_ns(), ns) << "seed " << seed << " at " << at;
        }
      }
  }
}

TEST(AccessHistory, FindsItsPlaceAgainWhenTheDepthChanges) {
  ValueTable table({});
  AccessHistory history(table);
  Reader reader(history, table);
  const ValueId first = table.created(64), layer = table.created(64), head = table.created(64);
  std::int64_t unforeseen = 0;
  for (int iteration = 0; iteration < 40; ++iteration) {
    const int depth = 2 + (iteration * 7) % 5;
    if (iteration == 20) unforeseen = table.counters.unforeseen_ops;
    for (std::uint64_t s = 1; s <= 8; ++s) reader.run(s, {first});
    for (int l = 0; l < depth; ++l)
      for (std::uint64_t s = 11; s <= 20; ++s) reader.run(s, {layer});
    for (std::uint64_t s = 31; s <= 40; ++s) reader.run(s, {head});
  }
  EXPECT_LT(table.counters.unforeseen_ops - unforeseen, 20 * 8);  // at most the few ops of a place in each iteration
  EXPECT_TRUE(history.foresees());
}

TEST(AccessHistory, SaysNothingOfWhatNeverRepeats) {
  ValueTable table({});
  AccessHistory history(table);
  Reader reader(history, table);
  const ValueId id = table.created(64);
  for (std::uint64_t s = 0; s < 500; ++s) {
    reader.run(s, {id});
    ASSERT_EQ(history.next_tick(id), AccessHistory::kUnknown);
  }
  EXPECT_EQ(table.counters.foreseen_ops, 0);
}

TEST(DeltaPrefetch, FetchesInTheOrderOfExpectedUseThenLastReleasedFirst) {
  ValueTable table({});
  AccessHistory history(table);
  DeltaPrefetch prefetch(table, history);
  Reader reader(history, table);
  std::vector<ValueId> v;
  for (int i = 0; i < 5; ++i) v.push_back(table.created(100));
  for (int iteration = 0; iteration < 4; ++iteration)
    for (std::uint64_t s = 0; s < 12; ++s) reader.run(s, s < 3 ? std::vector{v[s]} : std::vector<ValueId>{});
  prefetch.swapped(v[3]);
  reader.run(0, {v[0]});
  for (const int i : {2, 0, 1, 4}) prefetch.swapped(v[static_cast<std::size_t>(i)]);
  EXPECT_EQ(prefetch.next(99), std::nullopt);  // no room
  for (const int i : {1, 2, 0, 4, 3}) {
    ASSERT_EQ(prefetch.next(100), v[static_cast<std::size_t>(i)]) << i;
    prefetch.back(v[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(prefetch.next(100), std::nullopt);
}

}  // namespace
}  // namespace stowage::eager
