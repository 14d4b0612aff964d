// A schedule without times: which stage is on which rank, and each rank's actions in order. The orders are those that
// torch.distributed.pipelining runs (a test compares them).
//
//   in a loop   stage  0 1 2 3 4 5 6 7     there and back   stage  0 1 2 3 4 5 6 7
//               rank   0 1 2 3 0 1 2 3                      rank   0 1 2 3 3 2 1 0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stowage/pipeline.h"

namespace stowage::pipeline {

struct Schedule {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  std::int32_t ranks = 1, stages_per_rank = 1, micro_batches = 1;
  std::vector<std::int32_t> rank_of;                 // by stage
  std::vector<std::vector<PipelineAction>> actions;  // by rank
  [[nodiscard]] std::int32_t stages() const { return ranks * stages_per_rank; }
  [[nodiscard]] bool splits_backward() const {
    return kind == ScheduleKind::kZeroBubble || kind == ScheduleKind::kZeroBubbleV;
  }
  // Between this stage and the one after it
  [[nodiscard]] bool crosses(std::int32_t stage) const {
    const auto s = static_cast<std::size_t>(stage);
    return rank_of[s] != rank_of[s + 1];
  }
};

// Why a schedule does not take these numbers; empty: it does.
std::string refusal_of(ScheduleKind kind, std::int32_t ranks, std::int32_t stages_per_rank, std::int32_t micro_batches);

// Of numbers that are not refused.
Schedule make_schedule(ScheduleKind kind, std::int32_t ranks, std::int32_t stages_per_rank, std::int32_t micro_batches);

// One rank's actions, each in the file of its name.
std::vector<PipelineAction> one_forward_one_backward(std::int32_t ranks, std::int32_t rank, std::int32_t micro_batches);
std::vector<PipelineAction> interleaved(std::int32_t ranks, std::int32_t rank, std::int32_t stages_per_rank,
                                        std::int32_t micro_batches);
std::vector<PipelineAction> zero_bubble(std::int32_t ranks, std::int32_t rank, std::int32_t stages_per_rank,
                                        std::int32_t micro_batches);
std::vector<PipelineAction> zero_bubble_v(std::int32_t ranks, std::int32_t rank, std::int32_t micro_batches);

}  // namespace stowage::pipeline
