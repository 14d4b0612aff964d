// Each schedule in turn, each with the best cut that is faster than those before; then the plan is written out.
//
//   1f1b ─▶ 12 ms      interleaved, 2 a rank ─▶ none below 12 ms: proven      zbv ─▶ 11 ms      the plan: zbv
#include <algorithm>

#include "base/concat.h"
#include "base/limits.h"
#include "pipeline/cut_search.h"
#include "stowage/error.h"
#include "stowage/pipeline.h"

namespace stowage {
namespace {

using pipeline::Chain;
using pipeline::CutResult;
using pipeline::kNever;
using pipeline::Schedule;
using pipeline::StageCosts;
using pipeline::Timing;

void validate(const PipelineProblem& problem) {
  if (problem.layers.empty()) throw Error("a pipeline has no layers");
  if (problem.schedules.empty()) throw Error("no schedule is allowed");
  // All sums of the search stay exact in 64 bits.
  double time = 0, bytes = 0;
  for (const PipelineLayer& l : problem.layers) {
    time += static_cast<double>(l.forward_ns + l.backward_ns + l.input_ns + l.weight_ns + l.update_ns +
                                problem.action_ns + problem.latency_ns) +
            static_cast<double>(l.sent_bytes) / problem.gbps;
    bytes += static_cast<double>(l.parameter_bytes + l.gradient_bytes + l.optimizer_bytes + l.saved_bytes +
                                 2 * l.sent_bytes);
  }
  if (std::ssize(problem.ties) > kMostPipelineTies)
    throw Error(concat("a pipeline has ", problem.ties.size(), " ties, and at most ", kMostPipelineTies, " may be"));
  std::vector<PipelineLayer> rest = problem.layers;  // of each, what no tie has
  for (std::size_t t = 0; t < problem.ties.size(); ++t) {
    const PipelineTie& tie = problem.ties[t];
    std::int32_t last = -1;
    if (tie.layers.size() < 2) throw Error(concat("tie ", t, " has fewer than two layers"));
    for (const std::int32_t i : tie.layers) {
      if (i <= last || i >= std::ssize(rest))
        throw Error(concat("tie ", t, " has layer ", i, ", and its layers must ascend, below ", rest.size()));
      PipelineLayer& layer = rest[static_cast<std::size_t>(last = i)];
      layer.parameter_bytes -= tie.parameter_bytes, layer.gradient_bytes -= tie.gradient_bytes;
      layer.optimizer_bytes -= tie.optimizer_bytes;
      if (std::min({layer.parameter_bytes, layer.gradient_bytes, layer.optimizer_bytes}) < 0)
        throw Error(concat("tie ", t, " has more bytes than layer ", i, " has left for it"));
    }
    time += 2.0 * problem.ranks * static_cast<double>(problem.latency_ns) +
            2.0 * static_cast<double>(tie.gradient_bytes) / problem.gbps;
  }
  const double most = static_cast<double>(kMaxExact) / (4.0 * problem.micro_batches);
  if (time > most || bytes > most) throw Error("the times or bytes of the pipeline's layers are too large to add up");
}

std::vector<std::pair<ScheduleKind, std::int32_t>> schedules_of(const PipelineProblem& problem) {
  std::vector<std::pair<ScheduleKind, std::int32_t>> list;
  for (const ScheduleKind kind : problem.schedules) {
    if (kind == ScheduleKind::kOneForwardOneBackward) {
      list.emplace_back(kind, 1);
    } else if (kind == ScheduleKind::kZeroBubbleV) {
      list.emplace_back(kind, 2);
    } else {
      for (const std::int32_t v : problem.stages_per_rank)
        if (kind != ScheduleKind::kInterleaved || v > 1) list.emplace_back(kind, v);
    }
  }
  return list;
}

// Why this would take more time or memory than a small file may ask for; "": it does not.
std::string too_large(const PipelineProblem& problem, const Chain& chain, std::int64_t stages) {
  constexpr std::int64_t kMostForwards = 1 << 20;
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 27;  // of cut_bound.h
  if (stages * problem.micro_batches > kMostForwards)
    return concat("has ", stages * problem.micro_batches, " forward passes of its stages, and at most ", kMostForwards,
                  " are planned");
  // Each looks at all ties
  if (stages * chain.pieces() * chain.pieces() / 4 * (4 + std::ssize(problem.ties)) > kMostSteps)
    return concat("has too many stages, ", stages, ", for ", chain.pieces(), " pieces of layers with ",
                  problem.ties.size(), " ties");
  return "";
}

// A node of the search goes through the actions of the schedule once, and through the ties of each stage.
std::int64_t node_limit(const PipelineProblem& problem, const Schedule& schedule) {
  constexpr std::int64_t kMostActions = 400'000'000;  // a second or so
  const std::int64_t actions =
      std::int64_t{schedule.stages()} *
      (problem.micro_batches * (schedule.splits_backward() ? 3 : 2) + 8 * std::ssize(problem.ties));
  return std::min(problem.node_limit, std::max<std::int64_t>(1, kMostActions / actions));
}

// The ledger of the plan, and how long each rank works.
void write_out(const PipelineProblem& problem, const Chain& chain, const Schedule& schedule, const Timing& timing,
               const CutResult& cut, PipelinePlan& plan) {
  plan.schedule = schedule.kind;
  plan.stages_per_rank = schedule.stages_per_rank;
  plan.actions = schedule.actions;
  plan.step_ns = cut.value;
  plan.ranks.assign(static_cast<std::size_t>(schedule.ranks), {});
  plan.stages.clear();
  std::vector<StageCosts> stages;
  for (std::size_t s = 0; s < cut.firsts.size(); ++s) {
    const std::int32_t end = s + 1 < cut.firsts.size() ? cut.firsts[s + 1] : chain.layers();
    plan.stages.push_back({schedule.rank_of[s], cut.firsts[s], end});
    stages.push_back(chain.stage(schedule, static_cast<std::int32_t>(s), cut.firsts[s], end));
    PipelineRank& rank = plan.ranks[static_cast<std::size_t>(schedule.rank_of[s])];
    for (std::int32_t i = cut.firsts[s]; i < end; ++i) {
      const PipelineLayer& layer = problem.layers[static_cast<std::size_t>(i)];
      rank.parameters += layer.parameter_bytes;
      rank.gradients += layer.gradient_bytes;
      rank.optimizer_state += layer.optimizer_bytes;
    }
    rank.buffers += chain.buffer_bytes(schedule, static_cast<std::int32_t>(s), cut.firsts[s], end);
    const std::int64_t backward =
        schedule.splits_backward() ? stages.back().input_ns + stages.back().weight_ns : stages.back().backward_ns;
    rank.busy_ns += problem.micro_batches * (stages.back().forward_ns + backward) + stages.back().update_ns;
  }
  for (std::size_t t = 0; t < problem.ties.size(); ++t) {
    const PipelineTie& tie = problem.ties[t];
    std::vector<std::int64_t> held(plan.ranks.size());  // how often, as layers count it
    for (const PipelineStage& stage : plan.stages)
      held[static_cast<std::size_t>(stage.rank)] += chain.tied_layers(t, stage.first, stage.end);
    for (std::size_t r = 0; r < held.size(); ++r) {
      const std::int64_t again = std::max<std::int64_t>(0, held[r] - 1);
      plan.ranks[r].parameters -= again * tie.parameter_bytes;
      plan.ranks[r].gradients -= again * tie.gradient_bytes;
      plan.ranks[r].optimizer_state -= again * tie.optimizer_bytes;
    }
  }
  for (std::int32_t r = 0; r < schedule.ranks; ++r) {
    PipelineRank& rank = plan.ranks[static_cast<std::size_t>(r)];
    rank.saved = timing.rank_bytes(stages, r, schedule.stages()) - rank.peak_bytes();
    rank.idle_ns = plan.step_ns - rank.busy_ns;
  }
}

// Why no schedule can run: never mind times and bytes.
[[noreturn]] void refuse(const PipelineProblem& problem, const PipelinePlan& plan) {
  std::string why;
  for (const PipelineTry& t : plan.tried)
    why += concat(why.empty() ? "" : "; ", to_string(t.schedule), t.stages_per_rank > 1 ? " with " : "",
                  t.stages_per_rank > 1 ? concat(t.stages_per_rank, " stages a rank ") : " ", t.refusal);
  if (why.empty()) why = "interleaved needs 'stages_per_rank' of 2 or more";  // no other is left out
  throw Error(
      concat("no schedule runs ", problem.micro_batches, " micro-batches over ", problem.ranks, " ranks: ", why));
}

}  // namespace

double PipelinePlan::gap() const {
  return bound_ns > 0 ? static_cast<double>(step_ns - bound_ns) / static_cast<double>(bound_ns) : 0;
}

PipelinePlan plan_pipeline(const PipelineProblem& problem) {
  validate(problem);
  const Chain chain(problem);
  PipelinePlan plan;
  std::int64_t best = kNever, bound = kNever, smallest = kNever, bytes_bound = kNever;
  bool all_done = true, any_runs = false;
  for (const auto& [kind, v] : schedules_of(problem)) {
    PipelineTry& tried = plan.tried.emplace_back(PipelineTry{.schedule = kind, .stages_per_rank = v, .refusal = ""});
    tried.refusal = pipeline::refusal_of(kind, problem.ranks, v, problem.micro_batches);
    if (tried.refusal.empty() && chain.pieces() < problem.ranks * v)
      tried.refusal = concat("has ", problem.ranks * v, " stages, and the layers make ", chain.pieces(), " pieces");
    if (tried.refusal.empty()) tried.refusal = too_large(problem, chain, std::int64_t{problem.ranks} * v);
    if (!tried.refusal.empty()) continue;
    any_runs = true;
    const Schedule schedule = pipeline::make_schedule(kind, problem.ranks, v, problem.micro_batches);
    const Timing timing(schedule, chain.ties());
    const pipeline::LeastTime goal(chain, schedule, timing, problem.memory_limit_bytes);
    const CutResult cut = pipeline::search_cut(goal, best, node_limit(problem, schedule));
    tried.nodes = cut.nodes;
    tried.outcome = cut.done ? Outcome::kOptimal : cut.firsts.empty() ? Outcome::kUnknown : Outcome::kFeasible;
    all_done = all_done && cut.done;
    bound = std::min(bound, cut.bound);
    if (cut.bound < kNever) tried.bound_ns = cut.bound;
    if (cut.done && cut.bound == kNever) tried.outcome = Outcome::kInfeasible;
    if (!cut.firsts.empty()) {
      best = tried.step_ns = cut.value;
      write_out(problem, chain, schedule, timing, cut, plan);
    } else if (best == kNever) {
      const pipeline::LeastBytes bytes(chain, schedule, timing);
      const CutResult least = pipeline::search_cut(bytes, kNever, node_limit(problem, schedule));
      smallest = std::min(smallest, least.value), bytes_bound = std::min(bytes_bound, least.bound);
    }
  }
  if (!any_runs) refuse(problem, plan);
  if (best < kNever) {
    plan.outcome = all_done ? Outcome::kOptimal : Outcome::kFeasible;
    plan.bound_ns = std::min(bound, best);
  } else {
    plan.outcome = all_done ? Outcome::kInfeasible : Outcome::kUnknown;
    plan.smallest_bytes = smallest, plan.bound_bytes = bytes_bound;
  }
  return plan;
}

}  // namespace stowage
