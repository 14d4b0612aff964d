#include "budget/timing.h"

#include <algorithm>

#include "base/capped.h"

namespace stowage::budget {

Timing predict(const Graph& graph, const std::vector<Step>& steps, Link link) {
  struct Ready {
    std::int64_t ns = 0;
    std::int32_t copy = -1;
  };
  std::vector<Ready> ready(steps.size() + 1);  // when the copies that step i waits for are complete
  Timing timing;
  timing.steps.reserve(steps.size());
  std::int64_t now = 0, out_free = 0, in_free = 0;
  const auto wait = [&](std::size_t i) {
    StepTime time;
    if (ready[i].ns > now) {
      time.wait_ns = ready[i].ns - now;
      time.waits_for = ready[i].copy;
      now = ready[i].ns;
    }
    time.from_ns = time.to_ns = now;
    return time;
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    StepTime time = wait(i);
    if (step.kind == Step::Kind::kRun) {
      now = capped_sum(now, graph.op(step.op).cost_ns);
      time.to_ns = now;
    } else {
      std::int64_t& lane = step.kind == Step::Kind::kSwapOut ? out_free : in_free;
      time.from_ns = std::max(lane, now);
      time.to_ns = lane = capped_sum(time.from_ns, link.duration(graph.buffer(step.buffer).bytes));
      Ready& until = ready[static_cast<std::size_t>(step.until)];
      if (lane > until.ns) until = {lane, static_cast<std::int32_t>(i)};
    }
    timing.steps.push_back(time);
  }
  timing.end = wait(steps.size());
  timing.step_ns = now;
  return timing;
}

}  // namespace stowage::budget
