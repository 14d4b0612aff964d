#include "pipeline/chain.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
}

std::int64_t Chain::transfer_ns(std::int32_t layer) const {
  const auto bytes = static_cast<double>(problem_.layers[static_cast<std::size_t>(layer)].sent_bytes);
  return problem_.latency_ns + static_cast<std::int64_t>(std::ceil(bytes / problem_.gbps));
}

StageCosts Chain::stage(const Schedule& schedule, std::int32_t s, std::int32_t first, std::int32_t end) const {
  const Sums &from = at(first), &to = at(end);
  const bool sends = s + 1 < schedule.stages() && schedule.crosses(s), receives = s > 0 && schedule.crosses(s - 1);
  const std::int64_t action = problem_.action_ns;
  StageCosts costs;
  costs.forward_ns = to.forward - from.forward + action;
  costs.backward_ns = to.backward - from.backward + action;
  // The first stage has no input to differentiate
  costs.input_ns = (s == 0 ? 0 : to.input - from.input) + action;
  costs.weight_ns = (s == 0 ? to.backward - from.backward : to.weight - from.weight) + action;
  costs.update_ns = to.update - from.update;
  costs.transfer_ns = sends ? transfer_ns(end - 1) : 0;
  costs.held_bytes = to.held - from.held;
  // A buffer for each micro-batch
  if (receives) costs.held_bytes += micro_batches() * problem_.layers[static_cast<std::size_t>(first) - 1].sent_bytes;
  if (sends) costs.held_bytes += micro_batches() * problem_.layers[static_cast<std::size_t>(end) - 1].sent_bytes;
  costs.saved_bytes = to.saved - from.saved;
  return costs;
}

}  // namespace stowage::pipeline
