#include "pipeline/schedule.h"

#include <algorithm>

#include "base/concat.h"

namespace stowage {

std::string_view to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kOneForwardOneBackward: return "1f1b";
    case ScheduleKind::kInterleaved: return "interleaved";
    case ScheduleKind::kZeroBubble: return "zero-bubble";
    case ScheduleKind::kZeroBubbleV: return "zbv";
  }
  return "";
}

namespace pipeline {

std::string refusal_of(ScheduleKind kind, std::int32_t ranks, std::int32_t stages_per_rank,
                       std::int32_t micro_batches) {
  switch (kind) {
    case ScheduleKind::kOneForwardOneBackward:
      if (stages_per_rank != 1) return "has one stage a rank";
      if (micro_batches < ranks) return concat("needs at least ", ranks, " micro-batches, one for each stage");
      return "";
    case ScheduleKind::kZeroBubbleV: return stages_per_rank == 2 ? "" : "has two stages a rank";
    case ScheduleKind::kInterleaved:
      if (stages_per_rank < 2) return "has at least two stages a rank";
      break;
    case ScheduleKind::kZeroBubble: break;
  }
  const std::int32_t rounds = std::max(1, micro_batches / ranks);
  if (micro_batches % rounds != 0)
    return concat("needs micro-batches in ", rounds, " equal rounds, and ", micro_batches, " cannot be divided so");
  return "";
}

Schedule make_schedule(ScheduleKind kind, std::int32_t ranks, std::int32_t stages_per_rank,
                       std::int32_t micro_batches) {
  Schedule made{.kind = kind,
                .ranks = ranks,
                .stages_per_rank = stages_per_rank,
                .micro_batches = micro_batches,
                .rank_of = {},
                .actions = {}};
  for (std::int32_t s = 0; s < made.stages(); ++s) {
    const bool back = kind == ScheduleKind::kZeroBubbleV && s >= ranks;
    made.rank_of.push_back(back ? 2 * ranks - 1 - s : s % ranks);
  }
  for (std::int32_t r = 0; r < ranks; ++r) {
    switch (kind) {
      case ScheduleKind::kOneForwardOneBackward:
        made.actions.push_back(one_forward_one_backward(ranks, r, micro_batches));
        break;
      case ScheduleKind::kInterleaved:
        made.actions.push_back(interleaved(ranks, r, stages_per_rank, micro_batches));
        break;
      case ScheduleKind::kZeroBubble:
        made.actions.push_back(zero_bubble(ranks, r, stages_per_rank, micro_batches));
        break;
      case ScheduleKind::kZeroBubbleV: made.actions.push_back(zero_bubble_v(ranks, r, micro_batches)); break;
    }
  }
  return made;
}

}  // namespace pipeline
}  // namespace stowage
