// Pipelines against a naive twin: every cut under every schedule, timed by recursion over what waits for what.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "pipeline/schedule.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "stowage/pipeline.h"
#include "support/seed.h"

namespace stowage::testing {
namespace {

using pipeline::make_schedule;
using pipeline::refusal_of;
using pipeline::Schedule;
using Kind = PipelineAction::Kind;

constexpr std::array kKinds = {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved,
                               ScheduleKind::kZeroBubble, ScheduleKind::kZeroBubbleV};

PipelineProblem random_problem(std::mt19937_64& random) {
  const auto number = [&](int low, int high) {
    return static_cast<std::int32_t>(std::uniform_int_distribution(low, high)(random));
  };
  PipelineProblem p;
  p.ranks = number(1, 3);
  p.micro_batches = number(1, 6);
  p.latency_ns = number(0, 1) * number(0, 20);
  p.gbps = number(1, 4);
  p.action_ns = number(0, 1) * number(0, 5);
  const int layers = number(p.ranks, 8);
  const bool alike = number(0, 2) == 0;
  for (int i = 0; i < layers; ++i) {
    PipelineLayer l{.name = ""};
    l.forward_ns = alike ? 10 : number(0, 30);
    l.input_ns = alike ? 10 : number(0, 30);
    l.weight_ns = alike ? 10 : number(0, 30);
    l.backward_ns = l.input_ns + l.weight_ns - (alike ? 0 : std::min<std::int64_t>(number(0, 10), l.input_ns));
    l.update_ns = number(0, 1) * number(0, 30);
    l.parameter_bytes = number(0, 50), l.gradient_bytes = number(0, 50), l.optimizer_bytes = number(0, 50);
    l.saved_bytes = number(0, 40), l.sent_bytes = number(0, 20);
    l.joined = i > 0 && number(0, 9) == 0;
    p.layers.push_back(l);
  }
  for (int t = number(0, 2); t > 0; --t) {
    PipelineTie tie;
    tie.parameter_bytes = number(0, 30), tie.gradient_bytes = number(0, 30), tie.optimizer_bytes = number(0, 30);
    for (int i = 0; i < layers; ++i)
      if (number(0, 2) == 0) tie.layers.push_back(i);
    if (tie.layers.size() < 2) continue;
    for (const std::int32_t i : tie.layers) {
      PipelineLayer& l = p.layers[static_cast<std::size_t>(i)];
      l.parameter_bytes += tie.parameter_bytes, l.gradient_bytes += tie.gradient_bytes;
      l.optimizer_bytes += tie.optimizer_bytes;
    }
    p.ties.push_back(tie);
  }
  return p;
}

class Naive {
 public:
  Naive(const PipelineProblem& problem, const Schedule& schedule, std::vector<std::int32_t> firsts)
      : problem_(problem), schedule_(schedule), firsts_(std::move(firsts)) {
    firsts_.push_back(static_cast<std::int32_t>(problem.layers.size()));
  }

  std::int64_t step_ns() {
    std::int64_t step = 0;
    std::vector<std::int64_t> ends;
    for (std::size_t r = 0; r < schedule_.actions.size(); ++r)
      ends.push_back(ended(r, schedule_.actions[r].size() - 1));
    for (const PipelineTie& tie : problem_.ties) {
      const std::set<std::size_t> ranks = ranks_of(tie);
      const auto n = static_cast<std::int64_t>(ranks.size());
      if (n < 2 || tie.gradient_bytes == 0) continue;
      std::int64_t all = 0;
      for (const std::size_t r : ranks) all = std::max(all, ends[r]);
      const std::int64_t each = n * static_cast<std::int64_t>(problem_.gbps), sent = 2 * (n - 1) * tie.gradient_bytes;
      for (const std::size_t r : ranks) ends[r] = all + 2 * (n - 1) * problem_.latency_ns + (sent + each - 1) / each;
    }
    for (std::size_t r = 0; r < schedule_.actions.size(); ++r) {
      std::int64_t end = ends[r];
      for (std::size_t s = 0; s + 1 < firsts_.size(); ++s)
        if (schedule_.rank_of[s] == static_cast<std::int32_t>(r))
          end += sum(s, [](const PipelineLayer& l) { return l.update_ns; });
      step = std::max(step, end);
    }
    return step;
  }

  std::int64_t fullest_bytes() {
    std::int64_t most = 0;
    for (std::size_t r = 0; r < schedule_.actions.size(); ++r) {
      std::int64_t held = 0, saved = 0, peak = 0;
      for (std::size_t s = 0; s + 1 < firsts_.size(); ++s) {
        if (schedule_.rank_of[s] != static_cast<std::int32_t>(r)) continue;
        held += sum(s, [](const auto& l) { return l.parameter_bytes + l.gradient_bytes + l.optimizer_bytes; });
        for (const std::size_t before : {s - 1, s})
          if (before + 2 < firsts_.size() && schedule_.rank_of[before] != schedule_.rank_of[before + 1])
            held += problem_.micro_batches * last(before).sent_bytes;
      }
      for (const PipelineTie& tie : problem_.ties) {
        const auto here = std::ranges::count_if(
            tie.layers, [&](std::int32_t i) { return rank_of(i) == static_cast<std::int32_t>(r); });
        held -= std::max<std::int64_t>(0, here - 1) * (tie.parameter_bytes + tie.gradient_bytes + tie.optimizer_bytes);
      }
      for (const PipelineAction& a : schedule_.actions[r]) {
        const auto bytes = sum(static_cast<std::size_t>(a.stage), [](const auto& l) { return l.saved_bytes; });
        if (a.kind == Kind::kForward) saved += bytes;
        if (a.kind == Kind::kBackward || a.kind == Kind::kWeight) saved -= bytes;
        peak = std::max(peak, saved);
      }
      most = std::max(most, held + peak);
    }
    return most;
  }

 private:
  [[nodiscard]] std::int32_t rank_of(std::int32_t layer) const {
    const auto stage = std::ranges::upper_bound(firsts_, layer) - firsts_.begin() - 1;
    return schedule_.rank_of[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] std::set<std::size_t> ranks_of(const PipelineTie& tie) const {
    std::set<std::size_t> ranks;
    for (const std::int32_t i : tie.layers) ranks.insert(static_cast<std::size_t>(rank_of(i)));
    return ranks;
  }
  template <class Of>
  std::int64_t sum(std::size_t stage, Of of) const {
    std::int64_t total = 0;
    for (std::int32_t i = firsts_[stage]; i < firsts_[stage + 1]; ++i)
      total += of(problem_.layers[static_cast<std::size_t>(i)]);
    return total;
  }
  [[nodiscard]] const PipelineLayer& last(std::size_t stage) const {
    return problem_.layers[static_cast<std::size_t>(firsts_[stage + 1]) - 1];
  }
  [[nodiscard]] std::int64_t transfer(std::size_t stage) const {
    if (schedule_.rank_of[stage] == schedule_.rank_of[stage + 1]) return 0;
    const auto gbps = static_cast<std::int64_t>(problem_.gbps);
    return problem_.latency_ns + (last(stage).sent_bytes + gbps - 1) / gbps;
  }
  std::int64_t ended_of(std::int32_t stage, Kind kind, std::int32_t micro_batch) {
    const auto r = static_cast<std::size_t>(schedule_.rank_of[static_cast<std::size_t>(stage)]);
    for (std::size_t i = 0; i < schedule_.actions[r].size(); ++i) {
      const PipelineAction& a = schedule_.actions[r][i];
      const bool backward = kind == Kind::kBackward && (a.kind == Kind::kBackward || a.kind == Kind::kInput);
      if (a.stage == stage && a.micro_batch == micro_batch && (a.kind == kind || backward)) return ended(r, i);
    }
    ADD_FAILURE() << "an action is missing";
    return 0;
  }
  std::int64_t ended(std::size_t r, std::size_t i) {
    if (const auto found = known_.find({r, i}); found != known_.end()) return found->second;
    const PipelineAction& a = schedule_.actions[r][i];
    const auto s = static_cast<std::size_t>(a.stage);
    std::int64_t begin = i == 0 ? 0 : ended(r, i - 1), takes = problem_.action_ns;
    if (a.kind == Kind::kForward && s > 0)
      begin = std::max(begin, ended_of(a.stage - 1, Kind::kForward, a.micro_batch) + transfer(s - 1));
    if ((a.kind == Kind::kBackward || a.kind == Kind::kInput) && s + 2 < firsts_.size())
      begin = std::max(begin, ended_of(a.stage + 1, Kind::kBackward, a.micro_batch) + transfer(s));
    takes += sum(s, [&](const PipelineLayer& l) -> std::int64_t {
      if (a.kind == Kind::kForward) return l.forward_ns;
      if (a.kind == Kind::kBackward) return l.backward_ns;
      if (a.kind == Kind::kInput) return s == 0 ? 0 : l.input_ns;
      return s == 0 ? l.backward_ns : l.weight_ns;
    });
    return known_[{r, i}] = begin + takes;
  }

  const PipelineProblem& problem_;
  const Schedule& schedule_;
  std::vector<std::int32_t> firsts_;
  std::map<std::pair<std::size_t, std::size_t>, std::int64_t> known_;
};

struct Best {
  std::int64_t step_ns = -1, bytes = -1;  // of the fastest within the limit; the least of the fullest rank
  bool runs = false;
};

Best best_of_all(const PipelineProblem& problem) {
  Best best;
  for (const ScheduleKind kind : kKinds) {
    for (const std::int32_t v : {1, 2}) {
      if (!refusal_of(kind, problem.ranks, v, problem.micro_batches).empty()) continue;
      const Schedule schedule = make_schedule(kind, problem.ranks, v, problem.micro_batches);
      const std::function<void(std::vector<std::int32_t>)> cut = [&](const std::vector<std::int32_t>& firsts) {
        if (std::ssize(firsts) == schedule.stages()) {
          best.runs = true;
          Naive naive(problem, schedule, firsts);
          const std::int64_t bytes = naive.fullest_bytes(), step = naive.step_ns();
          if (best.bytes < 0 || bytes < best.bytes) best.bytes = bytes;
          if (problem.memory_limit_bytes && bytes > *problem.memory_limit_bytes) return;
          if (best.step_ns < 0 || step < best.step_ns) best.step_ns = step;
          return;
        }
        for (std::int32_t i = firsts.back() + 1; i < std::ssize(problem.layers); ++i) {
          if (problem.layers[static_cast<std::size_t>(i)].joined) continue;
          auto longer = firsts;
          longer.push_back(i);
          cut(longer);
        }
      };
      cut({0});
    }
  }
  return best;
}

void compare(const PipelineProblem& problem) {
  const Best best = best_of_all(problem);
  if (!best.runs) {
    EXPECT_THROW(plan_pipeline(problem), Error);
    return;
  }
  const PipelinePlan plan = plan_pipeline(problem);
  if (best.step_ns < 0) {
    EXPECT_EQ(plan.outcome, Outcome::kInfeasible);
    EXPECT_EQ(plan.smallest_bytes, best.bytes);
    EXPECT_EQ(plan.bound_bytes, best.bytes);
    return;
  }
  EXPECT_EQ(plan.outcome, Outcome::kOptimal);
  EXPECT_EQ(plan.step_ns, best.step_ns);
  EXPECT_EQ(plan.bound_ns, best.step_ns);
  const PipelineReport report = check_pipeline(problem, plan);
  EXPECT_TRUE(report.valid) << report.message;

  PipelineProblem hasty = problem;
  hasty.node_limit = 1;
  const PipelinePlan first = plan_pipeline(hasty);
  EXPECT_LE(first.bound_ns, best.step_ns) << "a bound that does not hold";
  if (first.stages.empty()) return;
  EXPECT_GE(first.step_ns, best.step_ns);
  EXPECT_TRUE(check_pipeline(hasty, first).valid);
}

TEST(Pipeline, IsTheBestOfAllCutsAndSchedules) {
  const std::uint64_t seed = first_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < cases(200, 20000); ++round) {
    SCOPED_TRACE(round);
    PipelineProblem problem = random_problem(random);
    compare(problem);
    const Best best = best_of_all(problem);
    if (!best.runs) continue;
    // Around the least that any cut holds, limits decide.
    problem.memory_limit_bytes = best.bytes + std::uniform_int_distribution(-1, 60)(random);
    compare(problem);
  }
}

TEST(Pipeline, OneForwardOneBackwardTakesItsFormulaAndHoldsItsShare) {
  PipelineProblem p;
  p.ranks = 4, p.micro_batches = 8, p.latency_ns = 0, p.gbps = 1e9;
  p.schedules = {ScheduleKind::kOneForwardOneBackward};
  for (int i = 0; i < 8; ++i)
    p.layers.push_back({.name = "", .forward_ns = 50, .backward_ns = 100, .saved_bytes = 64, .sent_bytes = 0});
  const PipelinePlan plan = plan_pipeline(p);
  EXPECT_EQ(plan.outcome, Outcome::kOptimal);
  EXPECT_EQ(plan.step_ns, (p.ranks - 1 + p.micro_batches) * 300);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(plan.ranks[static_cast<std::size_t>(r)].saved, (4 - r) * 2 * 64);
}

TEST(Pipeline, CheckerFindsWhatIsWrong) {
  PipelineProblem p;
  p.ranks = 2, p.micro_batches = 4, p.latency_ns = 3, p.memory_limit_bytes = 100'000;
  for (int i = 0; i < 6; ++i)
    p.layers.push_back({.name = "",
                        .forward_ns = 10 + i,
                        .backward_ns = 20,
                        .input_ns = 10,
                        .weight_ns = 10,
                        .update_ns = 5,
                        .parameter_bytes = 7,
                        .saved_bytes = 64,
                        .sent_bytes = 16});
  const PipelinePlan good = plan_pipeline(p);
  ASSERT_TRUE(check_pipeline(p, good).valid);
  const std::vector<std::function<void(PipelinePlan&)>> faults = {
      [](auto& x) { x.step_ns -= 1; },
      [](auto& x) { x.bound_ns = x.step_ns + 1; },
      [](auto& x) { x.stages[0].end += 1; },
      [](auto& x) { x.stages.back().end -= 1; },
      [](auto& x) { x.stages[1].rank = 0; },
      [](auto& x) { x.actions[0].pop_back(); },
      [](auto& x) { x.actions[0].push_back(x.actions[0][0]); },
      [](auto& x) { std::ranges::reverse(x.actions[1]); },
      [](auto& x) { x.actions[1][0].micro_batch = 9; },
      [](auto& x) { std::swap(x.actions[0], x.actions[1]); },
      [](auto& x) { x.ranks[1].saved += 1; },
      [](auto& x) { x.ranks[0].buffers -= 1; },
      [](auto& x) { x.ranks[0].parameters += 1; },
      [](auto& x) { x.ranks[0].idle_ns += 1; },
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    PipelinePlan bad = good;
    faults[i](bad);
    EXPECT_FALSE(check_pipeline(p, bad).valid) << i;
  }
  PipelineProblem tighter = p;
  tighter.memory_limit_bytes = 100;
  EXPECT_FALSE(check_pipeline(tighter, good).valid);
  PipelineProblem joined = p;
  joined.layers[static_cast<std::size_t>(good.stages[1].first)].joined = true;
  EXPECT_FALSE(check_pipeline(joined, good).valid);
  // A tie between the ranks takes time; one within a rank, bytes away.
  PipelineProblem tied = p;
  tied.ties = {{.layers = {0, 5}, .gradient_bytes = 7}};
  EXPECT_FALSE(check_pipeline(tied, good).valid);
  tied.ties = {{.layers = {0, 5}, .parameter_bytes = 7}};
  EXPECT_EQ(check_pipeline(tied, good).valid, good.stages.front().rank != good.stages.back().rank);
  tied.ties = {{.layers = {0, 1}, .parameter_bytes = 7}};
  EXPECT_EQ(check_pipeline(tied, good).valid, good.stages[0].end == 1);
}

// What a head costs that shares its weight with the embedding.
TEST(Pipeline, TiedLayersMayBeOnTwoRanks) {
  PipelineProblem p;
  p.ranks = 2, p.micro_batches = 4, p.latency_ns = 3, p.gbps = 1;
  p.schedules = {ScheduleKind::kOneForwardOneBackward};
  for (int i = 0; i < 4; ++i)
    p.layers.push_back({.name = "",
                        .forward_ns = 10,
                        .backward_ns = 20,
                        .update_ns = 5,
                        .parameter_bytes = 100,
                        .gradient_bytes = 100,
                        .optimizer_bytes = 200});
  const PipelinePlan apart = plan_pipeline(p);
  p.ties = {{.layers = {0, 3}, .parameter_bytes = 100, .gradient_bytes = 100, .optimizer_bytes = 200}};
  const PipelinePlan tied = plan_pipeline(p);
  EXPECT_EQ(tied.outcome, Outcome::kOptimal);
  EXPECT_EQ(tied.step_ns, apart.step_ns + 2 * p.latency_ns + 100);
  EXPECT_EQ(tied.ranks[0].parameters, 200);
  EXPECT_TRUE(check_pipeline(p, tied).valid);
  p.ranks = 1;
  const PipelinePlan alone = plan_pipeline(p);
  EXPECT_EQ(alone.ranks[0].parameters, 300);
  EXPECT_EQ(alone.ranks[0].optimizer_state, 600);
}

TEST(Pipeline, RefusesTiesThatCannotBe) {
  PipelineProblem p;
  p.layers.push_back({.name = "", .parameter_bytes = 10});
  p.layers.push_back({.name = "", .parameter_bytes = 10});
  for (const PipelineTie& tie :
       {PipelineTie{.layers = {0}}, PipelineTie{.layers = {0, 2}}, PipelineTie{.layers = {1, 0}},
        PipelineTie{.layers = {0, 0}}, PipelineTie{.layers = {-1, 0}},
        PipelineTie{.layers = {0, 1}, .parameter_bytes = 11}, PipelineTie{.layers = {0, 1}, .gradient_bytes = 1}}) {
    p.ties = {tie};
    EXPECT_THROW(plan_pipeline(p), Error);
  }
  p.ties = {{.layers = {0, 1}, .parameter_bytes = 6}, {.layers = {0, 1}, .parameter_bytes = 5}};
  EXPECT_THROW(plan_pipeline(p), Error) << "together they are more than a layer has";
  p.ties.assign(65, {.layers = {0, 1}});
  EXPECT_THROW(plan_pipeline(p), Error);
}

TEST(Pipeline, RefusesByTheReason) {
  PipelineProblem p;
  p.ranks = 4, p.micro_batches = 2;
  p.layers.resize(3);
  try {
    plan_pipeline(p);
    FAIL();
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("needs at least 4 micro-batches"), std::string::npos) << said;
    EXPECT_NE(said.find("the layers make 3 pieces"), std::string::npos) << said;
  }
}

TEST(Pipeline, LargerChainsEndWithinTheNodeLimitAndTheirBoundHolds) {
  std::mt19937_64 random(7);
  PipelineProblem p;
  p.ranks = 8, p.micro_batches = 32, p.node_limit = 2000;
  for (int i = 0; i < 96; ++i) {
    const auto f = std::uniform_int_distribution<std::int64_t>(100'000, 300'000)(random);
    p.layers.push_back({.name = "",
                        .forward_ns = f,
                        .backward_ns = 2 * f,
                        .input_ns = f,
                        .weight_ns = f,
                        .saved_bytes = 1000,
                        .sent_bytes = 100});
  }
  const PipelinePlan plan = plan_pipeline(p);
  EXPECT_TRUE(check_pipeline(p, plan).valid);
  EXPECT_LT(plan.gap(), 0.2);
}

PipelineProblem unequal_chain(int layers, std::int32_t ranks, std::int32_t micro_batches) {
  std::mt19937_64 random(11);
  PipelineProblem p;
  p.ranks = ranks, p.micro_batches = micro_batches;
  for (int i = 0; i < layers; ++i) {
    const auto f = std::uniform_int_distribution<std::int64_t>(1, 1000)(random);
    p.layers.push_back({.name = "", .forward_ns = f, .backward_ns = 2 * f, .input_ns = f, .weight_ns = f});
  }
  return p;
}

// Two kilobytes of a file; without a limit of their own these searches take minutes.
TEST(Pipeline, SmallFilesDoNotAskForMinutes) {
  const PipelineProblem p = unequal_chain(24, 8, 4096);
  const PipelinePlan plan = plan_pipeline(p);
  EXPECT_TRUE(check_pipeline(p, plan).valid);
  for (const PipelineTry& t : plan.tried) EXPECT_LE(t.nodes, 400'000'000 / (8 * 4096 * 2) + 1);
}

TEST(Pipeline, ManyTiesDoNotAskForMinutes) {
  for (const auto& [layers, ranks] : {std::pair{1024, 16}, std::pair{200, 64}, std::pair{24, 8}}) {
    PipelineProblem p = unequal_chain(layers, ranks, 64);
    PipelineTie all;
    for (int i = 0; i < layers; ++i) all.layers.push_back(i);
    all.gradient_bytes = 1;
    p.ties.assign(64, all);
    for (PipelineLayer& l : p.layers) l.gradient_bytes = 64;
    try {
      EXPECT_TRUE(check_pipeline(p, plan_pipeline(p)).valid);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("has too many stages"), std::string::npos) << error.what();
    }
  }
}

TEST(Pipeline, RefusesWhatTakesTooMuch) {
  for (const PipelineProblem& p : {unequal_chain(1024, 257, 4096), unequal_chain(4096, 64, 128)}) {
    try {
      plan_pipeline(p);
      FAIL();
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT_TRUE(said.find("at most 1048576 are planned") != std::string::npos ||
                  said.find("has too many stages") != std::string::npos)
          << said;
    }
  }
}

TEST(Pipeline, ReadsItsFormatStrictly) {
  const std::string layer = R"({"forward_ns":1,"backward_ns":3,"saved_bytes":4,"sent_bytes":5})";
  const auto text = [&](const std::string& more) {
    return R"({"format":"stowage-pipeline","version":1,"ranks":1,"micro_batches":2,"layers":[)" + layer + "]" + more +
           "}";
  };
  const PipelineProblem p = parse_pipeline(text(R"(,"schedules":["zbv"],"memory_limit_bytes":null)"), "x");
  EXPECT_EQ(p.layers[0].input_ns + p.layers[0].weight_ns, 3);
  EXPECT_EQ(p.schedules, std::vector{ScheduleKind::kZeroBubbleV});
  const PipelineProblem tied = parse_pipeline(text(R"(,"ties":[{"layers":[0,3],"gradient_bytes":7}])"), "x");
  ASSERT_EQ(tied.ties.size(), 1U);
  EXPECT_EQ(tied.ties[0].layers, (std::vector<std::int32_t>{0, 3}));
  EXPECT_EQ(tied.ties[0].gradient_bytes, 7);
  for (const char* more :
       {R"(,"schedules":["gpipe"])", R"(,"gbps":0)", R"(,"ranks":2)", R"(,"what":1)", R"(,"latency_ns":-1)",
        R"(,"schedules":["zbv","1f1b","zbv"])", R"(,"stages_per_rank":[2,2])", R"(,"ties":[{}])",
        R"(,"ties":[{"layers":[0,-1]}])", R"(,"ties":[{"layers":[0],"bytes":1}])"})
    EXPECT_THROW(parse_pipeline(text(more), "x"), Error) << more;
}

}  // namespace
}  // namespace stowage::testing
