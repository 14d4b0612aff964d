// Pipelines: a chain of layers cut into contiguous stages over the ranks of one mesh axis, and the schedule that runs
// micro-batches through them, so that a step takes the least time and no rank holds more than a limit.
//
//   PipelineProblem (layers with times and bytes, ranks, micro-batches, link, limit) ─▶ plan_pipeline() ─▶ PipelinePlan
//                                                                                             │
//                                                                       check_pipeline() ◀────┘ shares no code with it
//
//   1F1B, 3 ranks, 4 micro-batches       rank 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
//                                        rank 1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3
//                                        rank 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3
//
// The model of time. A rank runs its actions in their order, one at a time. An action begins when the rank is free and
// what it reads is there: what another rank has made arrives latency_ns + bytes / gbps after it was made; transfers do
// not wait for each other and take no time of either rank. When a rank's actions are done it updates its parameters.
// Before that, ranks that hold tied parameters add up their gradients: tie after tie, each when all its ranks are there.
// The model of bytes. A rank holds parameters, gradients and optimizer state of its stages all the time; a buffer for
// each micro-batch of each stage's input and of the gradient of its output, where they come from elsewhere; and what a
// forward saves until the backward (of the weights, where it is apart) is done. Tied parameters count once on a rank,
// with gradient and state. Files: docs/formats.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stowage/outcome.h"

namespace stowage {

enum class ScheduleKind : std::uint8_t {
  kOneForwardOneBackward,  // Narayanan et al., SOSP 2019 (PipeDream-Flush: ICML 2021)
  kInterleaved,            // Narayanan et al., SC 2021: several stages on a rank, in a loop
  kZeroBubble,             // Qi et al., ICLR 2024: the backward of the weights apart, later
  kZeroBubbleV,            // Qi et al., 2024: two stages on a rank, there and back
};
std::string_view to_string(ScheduleKind kind);  // "1f1b", "interleaved", "zero-bubble", "zbv"

struct PipelineLayer {
  std::string name;
  std::int64_t forward_ns = 0;   // of one micro-batch, as are the next three
  std::int64_t backward_ns = 0;  // all of it at once
  std::int64_t input_ns = 0;     // of the gradient of its input alone
  std::int64_t weight_ns = 0;    // of those of its parameters, after that
  std::int64_t update_ns = 0;    // of its parameters, by the optimizer: once a step
  std::int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  std::int64_t saved_bytes = 0;  // of one micro-batch: its output and what its backward reads, but not its input
  std::int64_t sent_bytes = 0;   // of one micro-batch: its output
  bool joined = false;           // with the layer before: they share what they write, and must be in one stage
};

inline constexpr std::int64_t kMostPipelineTies = 64;

// Parameters that several layers share. Layers on other ranks hold copies, with state of their own, and add up gradients:
// among n ranks in 2 (n - 1) rounds of a part of 1 / n each.
struct PipelineTie {
  std::vector<std::int32_t> layers;  // ascending, at least two; the bytes of each have those of the tie
  std::int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
};

struct PipelineProblem {
  std::string name;
  std::vector<PipelineLayer> layers;
  std::vector<PipelineTie> ties;  // at most kMostPipelineTies
  std::int32_t ranks = 1;
  std::int32_t micro_batches = 1;
  std::int64_t latency_ns = 6000;
  double gbps = 100;           // 10^9 bytes a second
  std::int64_t action_ns = 0;  // that each action takes besides its layers
  std::optional<std::int64_t> memory_limit_bytes;
  std::vector<ScheduleKind> schedules = {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved,
                                         ScheduleKind::kZeroBubble, ScheduleKind::kZeroBubbleV};
  std::vector<std::int32_t> stages_per_rank = {1, 2};  // of those schedules that leave it open
  std::int64_t node_limit = 200'000;                   // of each schedule's search
};

struct PipelineAction {
  // Forward; backward at once; backward of the input, and of the weights after it
  enum class Kind : char { kForward = 'F', kBackward = 'B', kInput = 'I', kWeight = 'W' };
  std::int32_t stage = 0;
  Kind kind = Kind::kForward;
  std::int32_t micro_batch = 0;
  auto operator<=>(const PipelineAction&) const = default;
};

struct PipelineStage {
  std::int32_t rank = 0;
  std::int32_t first = 0, end = 0;  // its layers
};

struct PipelineRank {
  std::int64_t parameters = 0, gradients = 0, optimizer_state = 0, buffers = 0;  // bytes
  std::int64_t saved = 0;                                                        // bytes, at the fullest moment
  std::int64_t busy_ns = 0, idle_ns = 0;                                         // idle: of step_ns
  [[nodiscard]] std::int64_t peak_bytes() const { return parameters + gradients + optimizer_state + buffers + saved; }
};

// What one schedule came to.
struct PipelineTry {
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  std::int32_t stages_per_rank = 1;
  Outcome outcome = Outcome::kUnknown;  // optimal: of this schedule, or proven no better than the plan
  std::int64_t step_ns = -1;            // of the best cut that was found; -1: none better than those before
  std::int64_t bound_ns = 0;
  std::int64_t nodes = 0;
  std::string refusal;  // why the schedule cannot run at all
};

struct PipelinePlan {
  Outcome outcome = Outcome::kUnknown;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  std::int32_t stages_per_rank = 1;
  std::vector<PipelineStage> stages;
  std::vector<std::vector<PipelineAction>> actions;  // by rank
  std::vector<PipelineRank> ranks;
  std::int64_t step_ns = 0;
  std::int64_t bound_ns = 0;  // no cut under any of the schedules is faster
  std::vector<PipelineTry> tried;
  // Where nothing fits: the least that was found for the fullest rank, and what none goes below
  std::int64_t smallest_bytes = 0, bound_bytes = 0;
  [[nodiscard]] double gap() const;
};

// Throws Error where no schedule can run: fewer pieces than ranks, or micro-batches that none of them takes.
PipelinePlan plan_pipeline(const PipelineProblem& problem);

struct PipelineReport {
  bool valid = false;
  std::string message;  // one line; empty when valid
};
// Replays a plan (not an infeasible one) by the two models above. Never throws on a wrong plan.
PipelineReport check_pipeline(const PipelineProblem& problem, const PipelinePlan& plan);

}  // namespace stowage
