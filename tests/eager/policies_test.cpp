// Every policy in the simulator: the limit holds, victims are allowed ones, nothing is left over; and how the policies
// compare.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "eager/simulator.h"
#include "stowage/error.h"
#include "support/seed.h"

namespace stowage {
namespace {

using testing::Program;
using testing::SimulationResult;
using testing::Simulator;

eager::Options options(const std::string& policy, std::int64_t limit_bytes, double link_bytes_per_ns) {
  eager::Options o;
  o.policy = policy;
  o.limit_bytes = limit_bytes;
  o.link_bytes_per_ns = link_bytes_per_ns;
  return o;
}

std::int64_t limit_at(const Program& program, double share) {
  return std::max(static_cast<std::int64_t>(share * static_cast<double>(testing::unlimited_peak(program))),
                  2 * testing::largest_op(program));
}

TEST(Policies, KeepTheLimitAndTheRulesOnRandomPrograms) {
  int feasible = 0;
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 12; ++seed) {
    const Program program =
        seed % 2 == 0 ? testing::training_program(seed, 6, 4) : testing::changing_program(seed, 6, 5);
    for (const char* policy : eager::policy_names())
      for (const auto release : {eager::Release::kBoth, eager::Release::kDropOnly, eager::Release::kSwapOnly})
        for (const double share : {0.9, 0.6, 0.4}) {
          eager::Options o = options(policy, limit_at(program, share), 4);
          o.release = release;
          o.seed = seed;
          const SimulationResult r = Simulator(program, o).run();
          SCOPED_TRACE("seed " + std::to_string(seed) + " policy " + policy + " release " +
                       std::to_string(static_cast<int>(release)) + " share " + std::to_string(share));
          ASSERT_EQ(r.broken, "");
          ASSERT_LE(r.peak_bytes, o.limit_bytes);
          if (!r.feasible) {
            // Two ops fit, so swapping can always go on; dropping alone may not.
            ASSERT_TRUE(release == eager::Release::kDropOnly || std::string(policy) != "default") << r.why;
            continue;
          }
          ++feasible;
          ASSERT_EQ(r.values_left, 0U);
          ASSERT_EQ(r.total_ns, r.compute_ns + r.stall_ns + r.recompute_ns);
        }
  }
  EXPECT_GT(feasible, 12 * 7 * 9 / 2);
}

TEST(Policies, DoNothingWhereTheLimitDoesNotBind) {
  const Program program = testing::training_program(3, 6, 3);
  for (const char* policy : eager::policy_names()) {
    const SimulationResult r = Simulator(program, options(policy, testing::unlimited_peak(program), 4)).run();
    EXPECT_EQ(r.total_ns, r.compute_ns) << policy;
    EXPECT_EQ(r.counters.drops + r.counters.swap_outs, 0) << policy;
  }
}

TEST(Policies, LookAtFewValues) {
  const Program program = testing::training_program(5, 300, 3);
  for (const char* policy : eager::policy_names()) {
    const SimulationResult r = Simulator(program, options(policy, limit_at(program, 0.5), 12)).run();
    ASSERT_EQ(r.broken, "") << policy;
    ASSERT_GT(r.counters.picks, 0) << policy;
    EXPECT_LT(static_cast<double>(r.counters.looks) / static_cast<double>(r.counters.picks), 400) << policy;
  }
}

TEST(Policies, RefuseANameThatThereIsNot) {
  try {
    eager::ValueTable table(options("mru", 1, 1));
    eager::Keeper keeper(table);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "no eviction policy is named \"mru\": there are default, delta, dtr, capuchin, lru, size, random");
  }
}

// The default's time over compute, against each rival's, on what repeats.
TEST(Policies, DefaultCostsLessThanItsRivalsWhenIterationsRepeat) {
  std::map<std::string, double> log_ratio;
  std::map<std::string, int> n;
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 8; ++seed) {
    const Program program = testing::training_program(seed, 16, 6);
    for (const double bytes_per_ns : {12.0, 4.0, 1.0})
      for (const double share : {0.75, 0.5, 0.35}) {
        const std::int64_t limit = limit_at(program, share);
        const SimulationResult own = Simulator(program, options("default", limit, bytes_per_ns)).run();
        ASSERT_TRUE(own.feasible) << "seed " << seed << " link " << bytes_per_ns << " share " << share << ": "
                                  << own.why;
        for (const char* rival : {"delta", "dtr", "capuchin", "lru"}) {
          const SimulationResult r = Simulator(program, options(rival, limit, bytes_per_ns)).run();
          if (!r.feasible) continue;
          log_ratio[rival] += std::log((own.overhead() + 1e-3) / (r.overhead() + 1e-3));
          ++n[rival];
        }
      }
  }
  for (const auto& [rival, sum] : log_ratio) {
    const double ratio = std::exp(sum / n[rival]);
    RecordProperty("overhead_of_default_over_" + rival, std::to_string(ratio));
    EXPECT_LT(ratio, 0.3) << rival;
  }
}

// Copies ahead of need are a reserve, not all that there is.
TEST(Policies, DefaultCopiesOutLittleMoreThanTheLimitNeeds) {
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 8; ++seed) {
    const int iterations = 6;
    const Program program = testing::training_program(seed, 16, iterations);
    const std::int64_t peak = testing::unlimited_peak(program), limit = peak * 9 / 10;
    const SimulationResult r = Simulator(program, options("default", limit, 12)).run();
    ASSERT_TRUE(r.feasible) << "seed " << seed << ": " << r.why;
    EXPECT_LE(r.counters.swapped_out_bytes / iterations, 3 * (peak - limit)) << "seed " << seed;
    EXPECT_LT(r.overhead(), 0.01) << "seed " << seed;
  }
}

TEST(Policies, PrefetchHalvesStallsOfTheDefault) {
  double with = 0, without = 0;
  for (std::uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 8; ++seed) {
    const Program program = testing::training_program(seed, 12, 6);
    eager::Options o = options("default", limit_at(program, 0.5), 4);
    o.release = eager::Release::kSwapOnly;
    with += static_cast<double>(Simulator(program, o).run().late_stall_ns);
    o.prefetch = false;
    without += static_cast<double>(Simulator(program, o).run().late_stall_ns);
  }
  RecordProperty("stalls_with_prefetch_over_without", std::to_string(with / without));
  EXPECT_LT(with, without / 2);
}

}  // namespace
}  // namespace stowage
