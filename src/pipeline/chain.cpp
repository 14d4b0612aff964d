#include "pipeline/chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace stowage::pipeline {

Chain::Chain(const PipelineProblem& problem) : problem_(problem), sums_(problem.layers.size() + 1) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < problem.layers.size(); ++i) {
    const PipelineLayer& layer = problem.layers[i];
    Sums sum = sums_[i];
    sum.forward += layer.forward_ns;
    sum.backward += layer.backward_ns;
    sum.input += layer.input_ns;
    sum.weight += layer.weight_ns;
    sum.drain += std::min(layer.backward_ns, layer.input_ns);
    sum.least_work += layer.forward_ns + std::min(layer.backward_ns, layer.input_ns + layer.weight_ns);
    sum.update += layer.update_ns;
    sum.held += layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes;
    sum.saved += layer.saved_bytes;
    sums_[i + 1] = sum;
    if (i > 0 && !layer.joined) {
      cuts_.push_back(static_cast<std::int32_t>(i));
      least = std::min(least, transfer_ns(static_cast<std::int32_t>(i) - 1));
    }
  }
  least_transfer_ns_ = cuts_.empty() ? 0 : least;
  for (const PipelineTie& tie : problem.ties) {
    ties_.push_back({.held_bytes = tie.parameter_bytes + tie.gradient_bytes + tie.optimizer_bytes,
                     .sent_bytes = tie.gradient_bytes,
                     .latency_ns = problem.latency_ns,
                     .gbps = problem.gbps});
    std::vector<std::int32_t>& before = tied_before_.emplace_back(problem.layers.size() + 1);
    for (const std::int32_t i : tie.layers) ++before[static_cast<std::size_t>(i) + 1];
    std::partial_sum(before.begin(), before.end(), before.begin());
  }
}

std::int64_t Chain::transfer_ns(std::int32_t layer) const {
  const auto bytes = static_cast<double>(problem_.layers[static_cast<std::size_t>(layer)].sent_bytes);
  return problem_.latency_ns + static_cast<std::int64_t>(std::ceil(bytes / problem_.gbps));
}

std::int64_t Chain::buffer_bytes(const Schedule& schedule, std::int32_t s, std::int32_t first, std::int32_t end) const {
  std::int64_t bytes = 0;
  if (s > 0 && schedule.crosses(s - 1)) bytes += problem_.layers[static_cast<std::size_t>(first) - 1].sent_bytes;
  if (s + 1 < schedule.stages() && schedule.crosses(s))
    bytes += problem_.layers[static_cast<std::size_t>(end) - 1].sent_bytes;
  return micro_batches() * bytes;
}

StageCosts Chain::stage(const Schedule& schedule, std::int32_t s, std::int32_t first, std::int32_t end) const {
  const Sums &from = at(first), &to = at(end);
  const bool sends = s + 1 < schedule.stages() && schedule.crosses(s);
  const std::int64_t action = problem_.action_ns;
  StageCosts costs;
  costs.forward_ns = to.forward - from.forward + action;
  costs.backward_ns = to.backward - from.backward + action;
  // The first stage has no input to differentiate
  costs.input_ns = (s == 0 ? 0 : to.input - from.input) + action;
  costs.weight_ns = (s == 0 ? to.backward - from.backward : to.weight - from.weight) + action;
  costs.update_ns = to.update - from.update;
  costs.transfer_ns = sends ? transfer_ns(end - 1) : 0;
  costs.held_bytes = to.held - from.held + buffer_bytes(schedule, s, first, end);
  costs.saved_bytes = to.saved - from.saved;
  for (std::size_t t = 0; t < ties_.size(); ++t) {
    const std::int64_t here = tied_layers(t, first, end);
    if (here == 0) continue;
    costs.ties |= std::uint64_t{1} << t;
    if (here < std::ssize(problem_.ties[t].layers)) costs.open_ties |= std::uint64_t{1} << t;
    costs.held_bytes -= (here - 1) * ties_[t].held_bytes;
  }
  return costs;
}

}  // namespace stowage::pipeline
