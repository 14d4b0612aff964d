// Where several stages of a rank take turns in a loop: a round is as many micro-batches as go through one stage before
// the next stage's turn; forwards go through the stages up, backwards down.
//
//   2 ranks, 2 stages each, rounds of 2, rank 0    forwards   0F0 0F1 2F0 2F1 0F2 0F3 ...     backwards  2B0 2B1 0B0 0B1 2B2 ...
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stowage/pipeline.h"

namespace stowage::pipeline {

class LoopOrder {
 public:
  LoopOrder(std::int32_t ranks, std::int32_t rank, std::int32_t stages_per_rank, std::int32_t micro_batches)
      : ranks_(ranks),
        rank_(rank),
        stages_(stages_per_rank),
        round_(micro_batches / std::max(1, micro_batches / ranks)) {}

  [[nodiscard]] std::int32_t round() const { return round_; }
  // The k-th forward, and the k-th of the backwards, which are of this kind
  [[nodiscard]] PipelineAction forward(std::int32_t k) const {
    return action(k, (k / round_) % stages_, PipelineAction::Kind::kForward);
  }
  [[nodiscard]] PipelineAction backward(std::int32_t k, PipelineAction::Kind kind) const {
    return action(k, stages_ - 1 - (k / round_) % stages_, kind);
  }

 private:
  [[nodiscard]] PipelineAction action(std::int32_t k, std::int32_t local, PipelineAction::Kind kind) const {
    return {local * ranks_ + rank_, kind, k / (round_ * stages_) * round_ + k % round_};
  }
  std::int32_t ranks_, rank_, stages_, round_;
};

}  // namespace stowage::pipeline
