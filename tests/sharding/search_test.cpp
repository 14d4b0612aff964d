// The search against trying everything, on random programs of up to 8 ops.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "sharding/ledger.h"
#include "sharding/merged_axes.h"
#include "sharding/neighbourhood.h"
#include "sharding/settle.h"
#include "sharding/sharding_milp.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

// Programs that are made op by op: each op takes tensors that are there.
class ProgramMaker {
 public:
  explicit ProgramMaker(std::uint64_t seed) : random_(seed) {}

  TensorProgram make(int ops) {
    add_tensor({pick({4, 5, 8}), pick({4, 6})}, TensorKind::kInput);
    add_tensor({pick({4, 6}), pick({4, 6})}, TensorKind::kParameter);
    for (int i = 0; i < ops; ++i) {
      phase_ = i < ops / 2 ? Phase::kForward : i + 1 < ops ? Phase::kBackward : Phase::kOptimizer;
      add_op();
    }
    return std::move(program_);
  }

 private:
  std::int64_t pick(std::initializer_list<std::int64_t> of) {
    return *(of.begin() + static_cast<std::ptrdiff_t>(random_() % of.size()));
  }
  int any_tensor() { return static_cast<int>(random_() % program_.tensors.size()); }
  [[nodiscard]] const std::vector<std::int64_t>& shape(int t) const {
    return program_.tensors[static_cast<std::size_t>(t)].shape;
  }

  int add_tensor(std::vector<std::int64_t> size, TensorKind kind, int alias = -1) {
    program_.tensors.push_back({.name = "",
                                .shape = std::move(size),
                                .item_bytes = 1000,
                                .kind = kind,
                                .of = {},
                                .alias_of = TensorId(alias)});
    return static_cast<int>(program_.tensors.size()) - 1;
  }

  ProgramOp& emit(const char* target, std::initializer_list<std::pair<const char*, int>> args, int out) {
    ProgramOp& op = program_.ops.emplace_back();
    op.target = target;
    op.phase = phase_;
    for (const auto& [name, t] : args) op.args.push_back({name, {TensorId(t)}, false});
    if (out >= 0) op.outputs.push_back(TensorId(out));
    return op;
  }

  void add_op() {
    const int a = any_tensor();
    if (phase_ == Phase::kOptimizer) {
      for (int g = static_cast<int>(program_.tensors.size()) - 1; g > 1; --g) {
        if (shape(g) != shape(1)) continue;
        emit("aten.add_.Tensor", {{"self", 1}, {"other", g}}, -1).writes = {TensorId(1)};
        return;
      }
    }
    const auto rank = shape(a).size();
    switch (random_() % 7) {
      case 0: emit("aten.relu.default", {{"self", a}}, add_tensor(shape(a), TensorKind::kActivation)); return;
      case 1:
        if (rank == 2)
          return static_cast<void>(emit("aten.t.default", {{"self", a}},
                                        add_tensor({shape(a)[1], shape(a)[0]}, TensorKind::kActivation, a)));
        break;
      case 2:
        if (rank == 2) {
          const int b = add_tensor({shape(a)[0] * shape(a)[1]}, TensorKind::kActivation, a);
          return static_cast<void>(emit("aten.view.default", {{"self", a}}, b));
        }
        break;
      case 3:
        if (rank == 2) {
          ProgramOp& op =
              emit("aten.sum.dim_IntList", {{"self", a}}, add_tensor({shape(a)[1]}, TensorKind::kActivation));
          op.attributes["dim"] = std::vector<std::int64_t>{0};
          return;
        }
        break;
      case 4: emit("aten.no_such_op.default", {{"self", a}}, add_tensor(shape(a), TensorKind::kActivation)); return;
      default: break;
    }
    for (int tries = 0; tries < 20; ++tries) {
      const int b = any_tensor();
      if (rank == 2 && shape(b).size() == 2 && shape(a)[1] == shape(b)[0])
        return static_cast<void>(emit("aten.mm.default", {{"self", a}, {"mat2", b}},
                                      add_tensor({shape(a)[0], shape(b)[1]}, TensorKind::kActivation)));
      if (shape(a) == shape(b))
        return static_cast<void>(
            emit("aten.add.Tensor", {{"self", a}, {"other", b}}, add_tensor(shape(a), TensorKind::kActivation)));
    }
    emit("aten.neg.default", {{"self", a}}, add_tensor(shape(a), TensorKind::kActivation));
  }

  std::mt19937_64 random_;
  TensorProgram program_;
  Phase phase_ = Phase::kForward;
};

std::int64_t counted(const ShardingBytes& b) {
  return b.parameters + b.gradients + b.optimizer_state + b.buffers + b.inputs + b.saved;
}
double time_of(const ShardingPlan& plan) { return plan.step_ns(); }

struct Best {
  std::int64_t fewest = -1;
  double fastest = -1;                                  // of all, whatever the bytes
  std::vector<std::pair<std::int64_t, double>> points;  // counted bytes, time
  std::vector<std::pair<std::int64_t, double>> peaks;   // peak, time
};

// Views that must not copy do not.
bool keeps_pins(const Space& space, const Choice& choice) {
  return std::all_of(space.edges.begin(), space.edges.end(), [&](const SpaceEdge& edge) {
    const std::size_t h = space.home_of(edge);
    const Code home = space.home_code(edge, space.homes[h].codes[static_cast<std::size_t>(choice.homes[h])]);
    return !edge.pinned ||
           home ==
               space.unit_codes(edge)[static_cast<std::size_t>(choice.strategies[static_cast<std::size_t>(edge.unit)])];
  });
}

// Every home of every tensor, every strategy of units whose copies count (with overlap: of all units); nothing when that
// is too many.
std::optional<Best> try_everything(const Space& space) {
  std::vector<std::size_t> radix;
  for (const HomeClass& home : space.homes) radix.push_back(home.codes.size());
  for (const SpaceUnit& unit : space.units) radix.push_back(unit.charged || space.overlap ? unit.usable.size() : 1);
  double product = 1;
  for (const std::size_t r : radix) product *= static_cast<double>(r);
  if (product > 30'000) return std::nullopt;
  Best best;
  std::vector<std::size_t> digit(radix.size(), 0);
  while (true) {
    Choice choice;
    for (std::size_t h = 0; h < space.homes.size(); ++h) choice.homes.push_back(static_cast<std::int32_t>(digit[h]));
    for (std::size_t u = 0; u < space.units.size(); ++u)
      choice.strategies.push_back(static_cast<std::int32_t>(digit[space.homes.size() + u]));
    if (!space.overlap) settle_strategies(space, choice);
    const ShardingPlan plan = make_ledger(space, choice);
    if (time_of(plan) < 1e300 && keeps_pins(space, choice)) {
      best.points.emplace_back(counted(plan.bytes), time_of(plan));
      best.peaks.emplace_back(plan.bytes.limited_peak, time_of(plan));
    }
    std::size_t at = 0;
    while (at < digit.size() && ++digit[at] == radix[at]) digit[at++] = 0;
    if (at == digit.size()) break;
  }
  for (const auto& [bytes, ns] : best.points) {
    if (best.fewest < 0 || bytes < best.fewest) best.fewest = bytes;
    if (best.fastest < 0 || ns < best.fastest) best.fastest = ns;
  }
  return best;
}

double fastest_within(const std::vector<std::pair<std::int64_t, double>>& points, double budget) {
  double fastest = -1;
  for (const auto& [bytes, ns] : points)
    if (static_cast<double>(bytes) <= budget * (1 + 1e-12) && (fastest < 0 || ns < fastest)) fastest = ns;
  return fastest;
}

Mesh small_mesh(std::uint64_t seed) {
  Mesh mesh{.axes = {}, .tflops = 1e-5, .memory_gbps = 2, .kernel_ns = 50};
  mesh.axes.push_back({.name = "", .size = seed % 3 == 0 ? 4 : 2, .latency_ns = 100, .gbps = 20});
  if (seed % 4 == 1) mesh.axes.push_back({.name = "", .size = 2, .latency_ns = 30, .gbps = 100});
  return mesh;
}

TEST(ShardingSearch, AgreesWithTryingEverything) {
  const std::uint64_t seed = testing::first_seed();
  int compared = 0;
  for (std::uint64_t i = 0; i < 150; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + i).make(2 + static_cast<int>(i % 7));
    const Mesh mesh = small_mesh(i);
    ShardingOptions options;
    options.cluster_rounds = 0;
    options.relative_gap = 0;
    const Space space = make_space(program, mesh, options);
    const auto best = try_everything(space);
    if (!best) continue;
    ++compared;
    for (const double eps : {0.0, 0.2}) {
      options.eps = eps;
      const ShardingPlan plan = plan_sharding(program, mesh, options);
      ASSERT_EQ(plan.time.outcome, Outcome::kOptimal);
      EXPECT_DOUBLE_EQ(plan.redundancy.value, static_cast<double>(best->fewest));
      EXPECT_LE(plan.redundancy.bound, plan.redundancy.value);
      EXPECT_LE(static_cast<double>(counted(plan.bytes)), (1 + eps) * plan.redundancy.value + 0.5);
      const double fastest = fastest_within(best->points, (1 + eps) * plan.redundancy.value);
      EXPECT_NEAR(time_of(plan), fastest, 1e-5 * fastest);
      EXPECT_NEAR(plan.time.bound, fastest, 1e-5 * fastest);
    }
    options.goal = ShardingGoal::kLeastTime;
    EXPECT_NEAR(time_of(plan_sharding(program, mesh, options)), best->fastest, 1e-5 * best->fastest);
  }
  EXPECT_GE(compared, 60);
}

// A plan under a limit keeps it, whatever share of what an op does not use counts; no choice that was tried and keeps it is below the bound, and none is faster than a
// plan called optimal. (Strategies that are slower and copy less are not among those tried, so that a plan may be
// faster than all of them.)
TEST(ShardingSearch, ALimitOnThePeakIsKeptAndItsBoundHolds) {
  const std::uint64_t seed = testing::first_seed();
  int met = 0, optimal = 0;
  for (std::uint64_t i = 0; i < 50; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 5000 + i).make(2 + static_cast<int>(i % 6));
    const Mesh mesh = small_mesh(i);
    ShardingOptions options;
    options.cluster_rounds = 0;
    options.relative_gap = 0;
    options.goal = ShardingGoal::kLeastTime;
    options.kept_share = i % 3 == 0 ? 0 : i % 3 == 1 ? 0.5 : 1;
    const auto best = try_everything(make_space(program, mesh, options));
    if (!best || best->peaks.empty()) continue;
    const std::int64_t free = plan_sharding(program, mesh, options).bytes.limited_peak;
    const std::int64_t least = std::min_element(best->peaks.begin(), best->peaks.end())->first;
    for (const std::int64_t limit : {least, (least + free) / 2}) {
      options.memory_limit_bytes = limit;
      const ShardingPlan plan = plan_sharding(program, mesh, options);
      EXPECT_NE(plan.time.outcome, Outcome::kInfeasible);
      if (plan.ops.empty()) continue;
      const double fastest = fastest_within(best->peaks, static_cast<double>(limit));
      EXPECT_LE(plan.bytes.limited_peak, limit);
      EXPECT_LE(plan.bytes.limited_peak, plan.bytes.peak);
      EXPECT_LE(plan.time.bound, fastest * (1 + 1e-6));
      EXPECT_LE(plan.time.bound, time_of(plan) * (1 + 1e-6));
      ++met;
      if (plan.time.outcome != Outcome::kOptimal) continue;
      ++optimal;
      EXPECT_LE(time_of(plan), fastest * (1 + 1e-6));
    }
  }
  EXPECT_GE(met, 30);
  EXPECT_GE(optimal, met / 2);
}

// No choice is faster than the bound; the search's plan is one of them, and seldom much slower than the best.
TEST(ShardingSearch, OverlappedPlansAgainstTryingEverything) {
  const std::uint64_t seed = testing::first_seed();
  int compared = 0, beside = 0;
  double ratios = 0;
  const int count = testing::cases(24, 80);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 3000 + i).make(2 + static_cast<int>(i % 4));
    const Mesh mesh = small_mesh(i);
    ShardingOptions options;
    options.cluster_rounds = 0;
    options.relative_gap = 0;
    options.overlap = true;
    const auto best = try_everything(make_space(program, mesh, options));
    if (!best) continue;
    ++compared;
    double with_less_room = kInfinity;
    for (const double eps : {0.0, 0.2, 3.0}) {
      options.eps = eps;
      const ShardingPlan plan = plan_sharding(program, mesh, options);
      ASSERT_FALSE(plan.ops.empty());
      EXPECT_LE(time_of(plan), with_less_room);
      with_less_room = time_of(plan);
      EXPECT_LE(static_cast<double>(counted(plan.bytes)), (1 + eps) * plan.redundancy.value + 0.5);
      const double fastest = fastest_within(best->points, (1 + eps) * plan.redundancy.value);
      EXPECT_LE(plan.time.bound, fastest * (1 + 1e-6));
      EXPECT_GE(time_of(plan), fastest * (1 - 1e-9));
      EXPECT_EQ(plan.time.value, time_of(plan));
      EXPECT_LE(time_of(plan), plan.compute_ns + plan.communication_ns + 1e-6);
      EXPECT_LE(time_of(plan), 1.5 * fastest);
      ratios += fastest > 0 ? time_of(plan) / fastest : 1;
      if (time_of(plan) < plan.compute_ns + plan.communication_ns) ++beside;
    }
  }
  EXPECT_GE(compared, count / 6);
  EXPECT_GE(beside, 1);
  EXPECT_LE(ratios, 1.05 * 3 * compared);
}

Choice solved(const Space& space, const ShardingOptions& options, const Neighbourhood* within = nullptr,
              double budget = kInfinity) {
  SolvedPrograms solved;
  Choice choice = solve_space(space, options, {.byte_budget = budget, .within = within}, solved).choice;
  settle(space, choice);
  choice.keep_home.clear();
  choice.keep_unit.clear();
  return choice;
}

// Copies under way belong to the peak.
TEST(ShardingSearch, WhatIsBroughtAheadIsInThePeak) {
  const std::uint64_t seed = testing::first_seed();
  int ahead = 0;
  for (std::uint64_t i = 0; i < 20; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 4000 + i).make(8);
    const Mesh mesh = small_mesh(i);
    ShardingOptions options;
    options.relative_gap = 0;
    options.overlap = true;
    const Space with = make_space(program, mesh, options);
    options.overlap = false;
    const Space without = make_space(program, mesh, options);
    const Choice choice = solved(without, options);
    const ShardingPlan a = make_ledger(without, choice), b = make_ledger(with, choice);
    std::int64_t most = 0;
    for (const OpSharding& op : b.ops) most = std::max(most, op.ahead_bytes);
    EXPECT_LE(b.bytes.peak, a.bytes.peak + most);
    EXPECT_GE(b.bytes.peak, a.bytes.peak + b.ops[static_cast<std::size_t>(a.bytes.peak_op)].ahead_bytes);
    EXPECT_EQ(a.communication_ns, b.communication_ns);
    if (b.bytes.peak > a.bytes.peak) ++ahead;
    options.overlap = true;
    options.goal = ShardingGoal::kLeastTime;
    options.memory_limit_bytes = a.bytes.peak;
    const ShardingPlan limited = plan_sharding(program, mesh, options);
    if (!limited.ops.empty()) {
      EXPECT_LE(limited.bytes.peak, a.bytes.peak);
    }
  }
  EXPECT_GT(ahead, 0);
}

Mesh cube() {
  Mesh mesh{.axes = {}, .tflops = 1e-5, .memory_gbps = 2, .kernel_ns = 50};
  for (const std::int32_t size : {2, 3, 2})
    mesh.axes.push_back({.name = "", .size = size, .latency_ns = 30.0 * size, .gbps = 20});
  return mesh;
}

// In seconds, a plan on three axes is searched in small first. Its bytes and its bound hold, and more bytes are never
// slower.
TEST(ShardingSearch, SearchesInSmallKeepTheLimits) {
  const std::uint64_t seed = testing::first_seed();
  for (std::uint64_t i = 0; i < 2; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 9000 + i).make(3);
    ShardingOptions options;
    options.relative_gap = 0;
    const ShardingPlan least = plan_sharding(program, cube(), options);
    ASSERT_EQ(least.time.outcome, Outcome::kOptimal);
    options.time_limit_seconds = 60;
    options.eps = 0.5;
    const ShardingPlan more = plan_sharding(program, cube(), options);
    ASSERT_EQ(more.time.outcome, Outcome::kOptimal);
    EXPECT_LE(static_cast<double>(counted(more.bytes)), 1.5 * more.redundancy.value + 0.5);
    EXPECT_LE(time_of(more), time_of(least) * (1 + 1e-6));
    options.goal = ShardingGoal::kLeastTime;
    const ShardingPlan fastest = plan_sharding(program, cube(), options);
    EXPECT_LE(time_of(fastest), time_of(more) * (1 + 1e-6));
    options.memory_limit_bytes = least.bytes.peak;
    const ShardingPlan limited = plan_sharding(program, cube(), options);
    ASSERT_FALSE(limited.ops.empty());
    EXPECT_LE(limited.bytes.peak, least.bytes.peak);
    EXPECT_LE(time_of(limited), time_of(least) * (1 + 1e-6));
    EXPECT_LE(time_of(fastest), time_of(limited) * (1 + 1e-6));
    EXPECT_LE(limited.time.bound, time_of(limited) * (1 + 1e-6));
  }
}

TEST(ShardingSearch, BetweenKnownChoicesIsNothingWorse) {
  const std::uint64_t seed = testing::first_seed();
  for (std::uint64_t i = 0; i < 8; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 7000 + i).make(6);
    ShardingOptions options;
    options.relative_gap = 0;
    const Space space = make_space(program, cube(), options);
    const double fewest = plan_sharding(program, cube(), options).redundancy.value;
    const Choice least = solved(space, options, nullptr, fewest), fastest = solved(space, options);
    const double slow = time_of(make_ledger(space, least)), fast = time_of(make_ledger(space, fastest));
    const Neighbourhood alone = between(space, {least});
    for (std::size_t h = 0; h < space.homes.size(); ++h) {
      EXPECT_EQ(std::count(alone.homes[h].begin(), alone.homes[h].end(), 1), 1);
      EXPECT_EQ(alone.homes[h][static_cast<std::size_t>(least.homes[h])], 1);
    }
    const double same = time_of(make_ledger(space, solved(space, options, &alone)));
    EXPECT_LE(same, slow * (1 + 1e-6));
    const Neighbourhood all = between(space, {least}, 0b111), both = between(space, {least, fastest});
    EXPECT_NEAR(time_of(make_ledger(space, solved(space, options, &all))), fast, 1e-5 * fast);
    EXPECT_NEAR(time_of(make_ledger(space, solved(space, options, &both))), fast, 1e-5 * fast);
    for (const unsigned loose : {1U, 2U, 4U, 6U}) {
      const Neighbourhood some = between(space, {least}, loose);
      const double found = time_of(make_ledger(space, solved(space, options, &some)));
      EXPECT_LE(found, slow * (1 + 1e-6));
      EXPECT_GE(found, fast * (1 - 1e-6));
    }
  }
}

TEST(ShardingSearch, MergedAxesCountTheSameBytes) {
  const std::uint64_t seed = testing::first_seed();
  int compared = 0;
  for (std::uint64_t i = 0; i < 16; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 8000 + i).make(6);
    ShardingOptions options;
    options.relative_gap = 0;
    const Space whole = make_space(program, cube(), options);
    for (const std::size_t first : {0, 1}) {
      const Space merged = make_space(program, merge_axes(cube(), first), options);
      EXPECT_EQ(merged.mesh.devices(), whole.mesh.devices());
      const Choice choice = solved(merged, options);
      const Choice split = split_axes(whole, merged, choice, first);
      if (std::count(split.homes.begin(), split.homes.end(), -1) > 0) continue;
      if (std::count(split.strategies.begin(), split.strategies.end(), -1) > 0) continue;
      ++compared;
      const ShardingPlan a = make_ledger(merged, choice), b = make_ledger(whole, split);
      EXPECT_EQ(counted(a.bytes), counted(b.bytes));
      EXPECT_NEAR(a.compute_ns, b.compute_ns, 1e-6 * a.compute_ns);
      for (std::size_t t = 0; t < a.tensors.size(); ++t) EXPECT_EQ(a.tensors[t].local_bytes, b.tensors[t].local_bytes);
    }
  }
  EXPECT_GE(compared, 10);
}

TEST(ShardingSearch, GivenPlacementsOfMergedAxes) {
  const MeshPlacement alike(3, {AxisPlacement::Kind::kShard, 1});
  MeshPlacement other = alike;
  other[0] = {AxisPlacement::Kind::kReplicate, -1};
  const auto merged = merge_axes({{0, alike}, {1, other}}, 0);
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(merged.at(0), MeshPlacement(2, {AxisPlacement::Kind::kShard, 1}));
  EXPECT_EQ(merge_axes({{1, other}}, 1).at(1), MeshPlacement({other[0], other[1]}));
}

TEST(ShardingSearch, ClassesNeverBeatWhatIsBest) {
  const std::uint64_t seed = testing::first_seed();
  for (std::uint64_t i = 0; i < 25; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const TensorProgram program = ProgramMaker(seed + 1000 + i).make(8);
    ShardingOptions options;
    options.relative_gap = 0;
    options.cluster_rounds = 0;
    const double alone = time_of(plan_sharding(program, small_mesh(i), options));
    options.cluster_rounds = 2;
    const ShardingPlan clustered = plan_sharding(program, small_mesh(i), options);
    EXPECT_GE(time_of(clustered), alone * (1 - 1e-6));
    EXPECT_NEAR(time_of(clustered), clustered.time.bound, 1e-5 * alone);
  }
}

}  // namespace
}  // namespace stowage::testing
