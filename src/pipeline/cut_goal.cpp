#include "pipeline/cut_goal.h"

#include <algorithm>

namespace stowage::pipeline {

LeastTime::LeastTime(const Chain& chain, const Schedule& schedule, const Timing& timing,
                     std::optional<std::int64_t> limit_bytes)
    : CutGoal(chain, schedule, timing), limit_bytes_(limit_bytes), changes_{0} {
  for (std::int32_t s = 0; s + 1 < schedule.stages(); ++s)
    changes_.push_back(changes_.back() + (schedule.crosses(s) ? 1 : 0));
}

std::int64_t LeastTime::before_ns(std::int32_t s, std::int32_t first) const {
  return chain_.forward_ns(first) + s * chain_.action_ns() +
         changes_[static_cast<std::size_t>(s)] * chain_.least_transfer_ns();
}

std::int64_t LeastTime::after_ns(std::int32_t s, std::int32_t first) const {
  return chain_.drain_ns(first, schedule_.splits_backward()) + s * chain_.action_ns() +
         changes_[static_cast<std::size_t>(s)] * chain_.least_transfer_ns();
}

std::int64_t LeastTime::work_ns(const StageCosts& stage) const {
  return chain_.micro_batches() *
         (stage.forward_ns + (schedule_.splits_backward() ? stage.input_ns + stage.weight_ns : stage.backward_ns));
}

std::int64_t LeastTime::least_exchange_ns(const StageCosts& stage) const {
  std::int64_t sum = 0;
  for (std::size_t t = 0; schedule_.stages_per_rank == 1 && t < chain_.ties().size(); ++t)
    if ((stage.open_ties >> t & 1U) != 0) sum += chain_.ties()[t].exchange_ns(2);
  return sum;
}

std::int64_t LeastTime::stage_bound(std::int32_t s, std::int32_t first, std::int32_t end) const {
  const StageCosts stage = chain_.stage(schedule_, s, first, end);
  if (limit_bytes_ && stage.held_bytes + timing_.in_flight(s) * stage.saved_bytes > *limit_bytes_) return kNever;
  const std::int64_t before = before_ns(s, first), work = work_ns(stage);
  const std::int64_t own = before + work + least_exchange_ns(stage) + stage.update_ns;
  if (!schedule_.splits_backward()) return std::max(own, before + work + after_ns(s, first));
  return std::max(own, before + chain_.micro_batches() * (stage.forward_ns + stage.input_ns) + after_ns(s, first));
}

std::int64_t LeastTime::part_bound(const std::vector<StageCosts>& stages, const std::vector<std::int32_t>& firsts,
                                   std::int32_t known) const {
  if (schedule_.stages_per_rank == 1) return 0;  // a stage alone says it all
  // The lowest stage of rank r is stage r, in both kinds of order.
  std::int64_t bound = 0, sum = 0;
  for (std::int32_t r = 0; r < schedule_.ranks; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const std::int32_t first = r < known ? firsts[at] : std::max(r, firsts[static_cast<std::size_t>(known)]);
    std::int64_t work = 0, update = 0;
    for (std::int32_t s = 0; s < known; ++s) {
      if (schedule_.rank_of[static_cast<std::size_t>(s)] != r) continue;
      work += work_ns(stages[static_cast<std::size_t>(s)]);
      update += stages[static_cast<std::size_t>(s)].update_ns;
    }
    const std::int64_t ends = before_ns(r, first), rest = schedule_.splits_backward() ? 0 : after_ns(r, first);
    if (work > 0) bound = std::max(bound, ends + work + std::max(update, rest));
    if (limit_bytes_ && timing_.rank_bytes(stages, r, known) > *limit_bytes_) return kNever;
    sum += ends + work + rest;
  }
  // Stages that are not known have work, too. How much of it is in the first, whose backward is another, is not known.
  if (known == 0) sum += chain_.micro_batches() * chain_.least_work_ns();
  if (known > 0 && known < schedule_.stages())
    sum += work_ns(
        chain_.stage(schedule_, schedule_.stages() - 1, firsts[static_cast<std::size_t>(known)], chain_.layers()));
  return std::max(bound, (sum + schedule_.ranks - 1) / schedule_.ranks);
}

std::int64_t LeastTime::value(const std::vector<StageCosts>& stages) const {
  if (limit_bytes_ && timing_.fullest_rank_bytes(stages) > *limit_bytes_) return kNever;
  return timing_.step_ns(stages);
}

std::int64_t LeastBytes::stage_bound(std::int32_t s, std::int32_t first, std::int32_t end) const {
  const StageCosts stage = chain_.stage(schedule_, s, first, end);
  return stage.held_bytes + timing_.in_flight(s) * stage.saved_bytes;
}

std::int64_t LeastBytes::part_bound(const std::vector<StageCosts>& stages, const std::vector<std::int32_t>&,
                                    std::int32_t known) const {
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < schedule_.ranks; ++r) most = std::max(most, timing_.rank_bytes(stages, r, known));
  return most;
}

std::int64_t LeastBytes::value(const std::vector<StageCosts>& stages) const {
  return timing_.fullest_rank_bytes(stages);
}

}  // namespace stowage::pipeline
