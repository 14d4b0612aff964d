#include "pipeline/timing.h"

#include <algorithm>
#include <cmath>

namespace stowage::pipeline {
namespace {

using Kind = PipelineAction::Kind;

bool dominated(const std::vector<std::int32_t>& moment, const std::vector<std::int32_t>& by) {
  for (std::size_t i = 0; i < moment.size(); ++i)
    if (moment[i] > by[i]) return false;
  return true;
}

}  // namespace

std::int64_t TieCosts::exchange_ns(std::int64_t ranks) const {
  if (ranks < 2 || sent_bytes == 0) return 0;
  const auto rounds = static_cast<double>(2 * (ranks - 1));
  const double bytes = rounds * static_cast<double>(sent_bytes) / static_cast<double>(ranks);
  return 2 * (ranks - 1) * latency_ns + static_cast<std::int64_t>(std::ceil(bytes / gbps));
}

Timing::Timing(const Schedule& schedule, const std::vector<TieCosts>& ties) : schedule_(schedule), ties_(ties) {
  const auto cells = static_cast<std::size_t>(schedule.stages()) * static_cast<std::size_t>(schedule.micro_batches);
  forward_end_.resize(cells), backward_end_.resize(cells), free_.resize(static_cast<std::size_t>(schedule.ranks));
  sort_actions();
  count_moments();
}

void Timing::sort_actions() {
  const auto m = static_cast<std::size_t>(schedule_.micro_batches);
  std::vector<char> forward(forward_end_.size()), backward(forward_end_.size());
  std::vector<std::size_t> next(schedule_.actions.size());
  const auto is_ready = [&](const PipelineAction& a) {
    const std::size_t cell = static_cast<std::size_t>(a.stage) * m + static_cast<std::size_t>(a.micro_batch);
    if (a.kind == Kind::kForward) return a.stage == 0 || forward[cell - m] != 0;
    if (a.kind == Kind::kWeight) return true;
    return a.stage == schedule_.stages() - 1 || backward[cell + m] != 0;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < next.size(); ++r) {
      const auto& list = schedule_.actions[r];
      for (; next[r] < list.size() && is_ready(list[next[r]]); ++next[r], moved = true) {
        const PipelineAction& a = list[next[r]];
        const std::size_t cell = static_cast<std::size_t>(a.stage) * m + static_cast<std::size_t>(a.micro_batch);
        if (a.kind == Kind::kForward) forward[cell] = 1;
        if (a.kind == Kind::kBackward || a.kind == Kind::kInput) backward[cell] = 1;
        sorted_.push_back(a);
      }
    }
  }
}

void Timing::count_moments() {
  most_.resize(static_cast<std::size_t>(schedule_.stages()));
  moments_.resize(schedule_.actions.size());
  stages_of_.resize(schedule_.actions.size());
  for (std::int32_t s = 0; s < schedule_.stages(); ++s)
    stages_of_[static_cast<std::size_t>(schedule_.rank_of[static_cast<std::size_t>(s)])].push_back(s);
  for (std::size_t r = 0; r < moments_.size(); ++r) {
    const auto& own = stages_of_[r];
    std::vector<std::int32_t> now(own.size());
    for (const PipelineAction& a : schedule_.actions[r]) {
      const auto i = static_cast<std::size_t>(std::ranges::find(own, a.stage) - own.begin());
      if (a.kind == Kind::kBackward || a.kind == Kind::kWeight) --now[i];
      if (a.kind != Kind::kForward) continue;
      ++now[i];
      auto& most = most_[static_cast<std::size_t>(a.stage)];
      most = std::max(most, now[i]);
      if (std::ranges::any_of(moments_[r], [&](const auto& m) { return dominated(now, m); })) continue;
      std::erase_if(moments_[r], [&](const auto& m) { return dominated(m, now); });
      moments_[r].push_back(now);
    }
  }
}

std::int64_t Timing::step_ns(const std::vector<StageCosts>& stages) const {
  const auto m = static_cast<std::size_t>(schedule_.micro_batches);
  std::ranges::fill(free_, 0);
  for (const PipelineAction& a : sorted_) {
    const auto s = static_cast<std::size_t>(a.stage);
    const std::size_t cell = s * m + static_cast<std::size_t>(a.micro_batch);
    const StageCosts& cost = stages[s];
    std::int64_t& now = free_[static_cast<std::size_t>(schedule_.rank_of[s])];
    switch (a.kind) {
      case Kind::kForward:
        if (s > 0) now = std::max(now, forward_end_[cell - m] + stages[s - 1].transfer_ns);
        forward_end_[cell] = now += cost.forward_ns;
        break;
      case Kind::kWeight: now += cost.weight_ns; break;
      case Kind::kBackward:
      case Kind::kInput:
        if (s + 1 < stages.size()) now = std::max(now, backward_end_[cell + m] + cost.transfer_ns);
        backward_end_[cell] = now += a.kind == Kind::kBackward ? cost.backward_ns : cost.input_ns;
        break;
    }
  }
  exchange(stages);
  for (std::size_t s = 0; s < stages.size(); ++s)
    free_[static_cast<std::size_t>(schedule_.rank_of[s])] += stages[s].update_ns;
  return *std::ranges::max_element(free_);
}

// Of tied gradients, when the actions are done.
void Timing::exchange(const std::vector<StageCosts>& stages) const {
  for (std::size_t t = 0; t < ties_.size(); ++t) {
    std::int64_t begin = 0, ranks = 0;
    const auto has = [&](std::size_t r) {
      return std::ranges::any_of(
          stages_of_[r], [&](std::int32_t s) { return (stages[static_cast<std::size_t>(s)].ties >> t & 1U) != 0; });
    };
    for (std::size_t r = 0; r < free_.size(); ++r)
      if (has(r)) begin = std::max(begin, free_[r]), ++ranks;
    if (const std::int64_t takes = ties_[t].exchange_ns(ranks); takes > 0) {
      for (std::size_t r = 0; r < free_.size(); ++r)
        if (has(r)) free_[r] = begin + takes;
    }
  }
}

std::int64_t Timing::rank_bytes(const std::vector<StageCosts>& stages, std::int32_t rank, std::int32_t known) const {
  const auto& own = stages_of_[static_cast<std::size_t>(rank)];
  std::int64_t held = 0, saved = 0;
  for (const std::int32_t s : own)
    if (s < known) held += stages[static_cast<std::size_t>(s)].held_bytes;
  for (std::size_t t = 0; own.size() > 1 && t < ties_.size(); ++t) {
    const auto holders = std::ranges::count_if(
        own, [&](std::int32_t s) { return s < known && (stages[static_cast<std::size_t>(s)].ties >> t & 1U) != 0; });
    held -= std::max<std::int64_t>(0, holders - 1) * ties_[t].held_bytes;
  }
  for (const auto& moment : moments_[static_cast<std::size_t>(rank)]) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i] < known) sum += moment[i] * stages[static_cast<std::size_t>(own[i])].saved_bytes;
    saved = std::max(saved, sum);
  }
  return held + saved;
}

std::int64_t Timing::fullest_rank_bytes(const std::vector<StageCosts>& stages) const {
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < schedule_.ranks; ++r) most = std::max(most, rank_bytes(stages, r, schedule_.stages()));
  return most;
}

}  // namespace stowage::pipeline
