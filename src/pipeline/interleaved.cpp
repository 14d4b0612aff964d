// Interleaved 1F1B: each rank has several stages, p apart, so that a micro-batch comes to it sooner and the bubble is
// shorter by the number of stages a rank; more is in flight, and more is sent.
//
//   v stages a rank, rounds of n:   (v - 1) n + 2 (p - 1 - r) forwards ahead, then one forward and one backward in turn
//
// D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
// O(micro-batches * stages a rank).
#include <algorithm>

#include "pipeline/loop_order.h"
#include "pipeline/schedule.h"

namespace stowage::pipeline {

std::vector<PipelineAction> interleaved(std::int32_t ranks, std::int32_t rank, std::int32_t stages_per_rank,
                                        std::int32_t micro_batches) {
  const LoopOrder order(ranks, rank, stages_per_rank, micro_batches);
  const std::int32_t all = stages_per_rank * micro_batches;
  const std::int32_t ahead = std::min(all, (stages_per_rank - 1) * order.round() + 2 * (ranks - 1 - rank));
  std::vector<PipelineAction> list;
  for (std::int32_t k = 0; k < ahead; ++k) list.push_back(order.forward(k));
  for (std::int32_t k = 0; k < all; ++k) {
    if (ahead + k < all) list.push_back(order.forward(ahead + k));
    list.push_back(order.backward(k, PipelineAction::Kind::kBackward));
  }
  return list;
}

}  // namespace stowage::pipeline
