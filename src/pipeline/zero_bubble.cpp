// Zero bubble with memory as of 1F1B (ZB-H1), over one stage a rank or several in a loop: the backward of the weights
// is apart from that of the input, which alone the rank before waits for, and fills what would be idle.
//
//   rank r:   forwards ahead, then F I F I ... I I; from its r-th backward on, each is followed by the oldest W that is
//             left; then the W that remain
//
// P. Qi, X. Wan, G. Huang, M. Lin, "Zero bubble pipeline parallelism", ICLR 2024 (arXiv 2401.10241). The first stage
// has no input to differentiate: its I is empty, its W the whole backward. O(micro-batches * stages a rank).
#include <algorithm>

#include "pipeline/loop_order.h"
#include "pipeline/schedule.h"

namespace stowage::pipeline {

std::vector<PipelineAction> zero_bubble(std::int32_t ranks, std::int32_t rank, std::int32_t stages_per_rank,
                                        std::int32_t micro_batches) {
  using Kind = PipelineAction::Kind;
  const LoopOrder order(ranks, rank, stages_per_rank, micro_batches);
  const std::int32_t all = stages_per_rank * micro_batches;
  const std::int32_t ahead = std::min(all, (stages_per_rank - 1) * order.round() + (ranks - 1 - rank));
  std::vector<PipelineAction> list;
  std::int32_t weights = 0;
  for (std::int32_t k = 0; k < ahead; ++k) list.push_back(order.forward(k));
  for (std::int32_t k = 0; k < all; ++k) {
    if (ahead + k < all) list.push_back(order.forward(ahead + k));
    list.push_back(order.backward(k, Kind::kInput));
    if (k >= rank) list.push_back(order.backward(weights++, Kind::kWeight));
  }
  while (weights < all) list.push_back(order.backward(weights++, Kind::kWeight));
  return list;
}

}  // namespace stowage::pipeline
