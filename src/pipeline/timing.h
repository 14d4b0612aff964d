// How long a step takes under a schedule, and what its ranks hold at their fullest moment, by times and bytes of stages.
//
//   actions in an order in which each comes after what it waits for (it does not depend on the times), once for a schedule
//        │
//        └─▶ one pass for each cut: begin = max(rank is free, what it reads has arrived), end = begin + its time
//
// Without memory of the cut before: O(stages * micro-batches) a pass. What is in flight is counted once for a schedule,
// too: of each rank the moments at which no other moment has as many micro-batches of every stage.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule.h"

namespace stowage::pipeline {

struct StageCosts {
  std::int64_t forward_ns = 0, backward_ns = 0, input_ns = 0, weight_ns = 0,
               update_ns = 0;    // actions' own time included
  std::int64_t transfer_ns = 0;  // to the next stage and back from it, each; 0 on the same rank
  std::int64_t held_bytes = 0;   // all the time
  std::int64_t saved_bytes = 0;  // of one micro-batch
  std::uint64_t ties = 0;        // a bit for each that it has layers of
  std::uint64_t open_ties = 0;   // and of these for each that other stages have layers of, too
};

// Of parameters that layers share.
struct TieCosts {
  std::int64_t held_bytes = 0;  // with gradient and state
  std::int64_t sent_bytes = 0;  // the gradient
  std::int64_t latency_ns = 0;
  double gbps = 1;
  // Until so many ranks have the sum of their gradients
  [[nodiscard]] std::int64_t exchange_ns(std::int64_t ranks) const;
};

class Timing {
 public:
  // `ties` must outlive it, as the schedule must.
  Timing(const Schedule& schedule, const std::vector<TieCosts>& ties);

  [[nodiscard]] std::int64_t step_ns(const std::vector<StageCosts>& stages) const;
  // Of stages [0, known): those after it count nothing
  [[nodiscard]] std::int64_t rank_bytes(const std::vector<StageCosts>& stages, std::int32_t rank,
                                        std::int32_t known) const;
  [[nodiscard]] std::int64_t fullest_rank_bytes(const std::vector<StageCosts>& stages) const;
  // Micro-batches of a stage alone that are in flight at once, at most
  [[nodiscard]] std::int32_t in_flight(std::int32_t stage) const { return most_[static_cast<std::size_t>(stage)]; }

 private:
  void sort_actions();
  void count_moments();
  void exchange(const std::vector<StageCosts>& stages) const;

  const Schedule& schedule_;
  const std::vector<TieCosts>& ties_;
  std::vector<PipelineAction> sorted_;
  std::vector<std::vector<std::int32_t>> stages_of_;                     // by rank, its stages
  std::vector<std::vector<std::vector<std::int32_t>>> moments_;          // by rank: by moment: in flight, by its stages
  std::vector<std::int32_t> most_;                                       // by stage
  mutable std::vector<std::int64_t> forward_end_, backward_end_, free_;  // of one pass
};

}  // namespace stowage::pipeline
