// 1F1B with a flush: a rank runs as many forwards ahead as there are stages after it, then one forward and one backward
// in turn, then the backwards that are left.
//
//   stage s of p:   F0 ... F(p-s-2)   F B F B ... F B   B ... B        at most p - s micro-batches are in flight
//
// D. Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019; with a flush each
// step: "Memory-efficient pipeline-parallel DNN training", ICML 2021. O(micro-batches).
#include <algorithm>

#include "pipeline/schedule.h"

namespace stowage::pipeline {

std::vector<PipelineAction> one_forward_one_backward(std::int32_t ranks, std::int32_t rank,
                                                     std::int32_t micro_batches) {
  using Kind = PipelineAction::Kind;
  std::vector<PipelineAction> list;
  const std::int32_t ahead = std::min(micro_batches, ranks - 1 - rank);
  for (std::int32_t m = 0; m < ahead; ++m) list.push_back({rank, Kind::kForward, m});
  for (std::int32_t m = ahead; m < micro_batches; ++m) {
    list.push_back({rank, Kind::kForward, m});
    list.push_back({rank, Kind::kBackward, m - ahead});
  }
  for (std::int32_t m = micro_batches - ahead; m < micro_batches; ++m) list.push_back({rank, Kind::kBackward, m});
  return list;
}

}  // namespace stowage::pipeline
