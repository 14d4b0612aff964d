// What a cut is judged by, and what no way to complete a part of it falls below. cut_search.h looks for the least.
//
//   |  stage 0  |  stage 1  |  ? ? ? ?          bound of a stage alone   >=  depends on (stage, first, end) only
//                                               bound of the part       >=  what its stages come to together
//
// Time. For every stage s of layers [i, j), the step is at least
//
//   forwards of layers [0, i)  +  the stage's own actions of all micro-batches  +  backwards of layers [0, i)
//        (its first forward waits for them)                    (they wait for its last backward)
//
// with an action's own time for each stage, and the least transfer for each change of rank. Where backwards are split,
// only the backward of the input is waited for: then the bound is the larger of that sum without W and of the sum with W
// and without what comes after. Where a rank has one stage, each tie to layers of others takes an exchange between two
// ranks at least, before the update. A rank's stages in a loop count together from its first one on; and the ranks' sums, on
// average, are no more than the step.
//
// Bytes. What a stage alone holds; what a rank's stages hold together.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "pipeline/chain.h"
#include "pipeline/timing.h"

namespace stowage::pipeline {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class CutGoal {
 public:
  CutGoal(const Chain& chain, const Schedule& schedule, const Timing& timing)
      : chain_(chain), schedule_(schedule), timing_(timing) {}
  CutGoal(const CutGoal&) = delete;
  CutGoal& operator=(const CutGoal&) = delete;
  virtual ~CutGoal() = default;

  // Of any cut that has this stage; kNever: none may
  [[nodiscard]] virtual std::int64_t stage_bound(std::int32_t s, std::int32_t first, std::int32_t end) const = 0;
  // Of any cut that begins with stages [0, known), whose costs are given; `firsts`: their first layers
  [[nodiscard]] virtual std::int64_t part_bound(const std::vector<StageCosts>& stages,
                                                const std::vector<std::int32_t>& firsts, std::int32_t known) const = 0;
  // Of a whole cut; kNever: it may not be
  [[nodiscard]] virtual std::int64_t value(const std::vector<StageCosts>& stages) const = 0;

  [[nodiscard]] const Chain& chain() const { return chain_; }
  [[nodiscard]] const Schedule& schedule() const { return schedule_; }

 protected:
  const Chain& chain_;
  const Schedule& schedule_;
  const Timing& timing_;
};

class LeastTime : public CutGoal {
 public:
  LeastTime(const Chain& chain, const Schedule& schedule, const Timing& timing,
            std::optional<std::int64_t> limit_bytes);
  [[nodiscard]] std::int64_t stage_bound(std::int32_t s, std::int32_t first, std::int32_t end) const override;
  [[nodiscard]] std::int64_t part_bound(const std::vector<StageCosts>& stages, const std::vector<std::int32_t>& firsts,
                                        std::int32_t known) const override;
  [[nodiscard]] std::int64_t value(const std::vector<StageCosts>& stages) const override;

 private:
  // Before a stage that begins at this layer can begin; after its last backward
  [[nodiscard]] std::int64_t before_ns(std::int32_t s, std::int32_t first) const;
  [[nodiscard]] std::int64_t after_ns(std::int32_t s, std::int32_t first) const;
  [[nodiscard]] std::int64_t work_ns(const StageCosts& stage) const;  // all its actions
  // Of its tied gradients, where each other stage is on another rank
  [[nodiscard]] std::int64_t least_exchange_ns(const StageCosts& stage) const;
  std::optional<std::int64_t> limit_bytes_;
  std::vector<std::int64_t> changes_;  // of rank, before each stage
};

class LeastBytes : public CutGoal {
 public:
  using CutGoal::CutGoal;
  [[nodiscard]] std::int64_t stage_bound(std::int32_t s, std::int32_t first, std::int32_t end) const override;
  [[nodiscard]] std::int64_t part_bound(const std::vector<StageCosts>& stages, const std::vector<std::int32_t>& firsts,
                                        std::int32_t known) const override;
  [[nodiscard]] std::int64_t value(const std::vector<StageCosts>& stages) const override;
};

}  // namespace stowage::pipeline
