// The chain of layers, so that the costs of any stage are there at once: sums from the beginning.
//
//   layers   | a | b | c | d | e |        stage [1, 4): sums[4] - sums[1], and what passes at its two ends
//              t   t       t              ties: bytes of what its layers share, once
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/timing.h"

namespace stowage::pipeline {

class Chain {
 public:
  // The problem must outlive it.
  explicit Chain(const PipelineProblem& problem);

  [[nodiscard]] std::int32_t layers() const { return static_cast<std::int32_t>(problem_.layers.size()); }
  [[nodiscard]] std::int32_t pieces() const { return static_cast<std::int32_t>(cuts_.size()) + 1; }
  // Where a stage may begin, beside layer 0: ascending
  [[nodiscard]] const std::vector<std::int32_t>& cuts() const { return cuts_; }
  // Stage s of a schedule, of layers [first, end)
  [[nodiscard]] StageCosts stage(const Schedule& schedule, std::int32_t s, std::int32_t first, std::int32_t end) const;
  // Of what comes to it from other ranks: each micro-batch has its own
  [[nodiscard]] std::int64_t buffer_bytes(const Schedule& schedule, std::int32_t s, std::int32_t first,
                                          std::int32_t end) const;
  [[nodiscard]] std::int64_t least_transfer_ns() const { return least_transfer_ns_; }
  // Of layers [0, end): forwards; the least of what a backward through them takes before the first stage is done
  [[nodiscard]] std::int64_t forward_ns(std::int32_t end) const { return at(end).forward; }
  [[nodiscard]] std::int64_t drain_ns(std::int32_t end, bool split) const {
    return split ? at(end).drain : at(end).backward;
  }
  // Of all layers: forwards, and backwards at once or apart, whichever is less
  [[nodiscard]] std::int64_t least_work_ns() const { return sums_.back().least_work; }
  [[nodiscard]] std::int64_t action_ns() const { return problem_.action_ns; }
  [[nodiscard]] std::int64_t micro_batches() const { return problem_.micro_batches; }
  [[nodiscard]] const std::vector<TieCosts>& ties() const { return ties_; }
  // How many of layers [first, end) are a tie's
  [[nodiscard]] std::int64_t tied_layers(std::size_t tie, std::int32_t first, std::int32_t end) const {
    return tied_before_[tie][static_cast<std::size_t>(end)] - tied_before_[tie][static_cast<std::size_t>(first)];
  }

 private:
  struct Sums {
    std::int64_t forward = 0, backward = 0, input = 0, weight = 0, drain = 0, least_work = 0, update = 0, held = 0,
                 saved = 0;
  };
  [[nodiscard]] const Sums& at(std::int32_t i) const { return sums_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t transfer_ns(std::int32_t layer) const;  // of its output

  const PipelineProblem& problem_;
  std::vector<Sums> sums_;
  std::vector<std::int32_t> cuts_;
  std::vector<TieCosts> ties_;
  std::vector<std::vector<std::int32_t>> tied_before_;  // by tie: of its layers, those before each layer
  std::int64_t least_transfer_ns_ = 0;
};

}  // namespace stowage::pipeline
