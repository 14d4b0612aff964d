#include "runtime/replay/swaps.h"

#include <algorithm>
#include <map>

#include "stowage/layout.h"

namespace stowage::runtime {

std::int64_t place_in_host(std::vector<HostRange>& ranges) {
  std::vector<LayoutItem> items;
  for (const HostRange& range : ranges) items.push_back({range.from, range.to, range.bytes});
  LayoutOptions options;
  options.align = 4096;
  options.node_budget = 10'000;  // host memory is cheap
  const LayoutResult result = layout(items, options);
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i].offset = result.offsets[i];
  return result.height_bytes;
}

SwapSchedule schedule_swaps(const Graph& graph, const Plan& plan) {
  SwapSchedule schedule;
  std::map<BufferId, std::size_t> held;  // the range that holds the buffer's latest copy
  std::vector<std::size_t> range_of_swap;
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    if (step.kind == Step::Kind::kRun) continue;
    const auto now = static_cast<std::int32_t>(s);
    const std::int64_t bytes = graph.buffer(step.buffer).bytes;
    const bool out = step.kind == Step::Kind::kSwapOut;
    if (std::binary_search(plan.away.begin(), plan.away.end(), step.buffer)) {
      range_of_swap.push_back(0);
      schedule.swaps.push_back(
          {out ? Copy::Direction::kOut : Copy::Direction::kIn, step.buffer, now, step.until, 0, true});
      (out ? schedule.swapped_bytes : schedule.fetched_bytes) += bytes;
      continue;
    }
    if (out) {
      held[step.buffer] = schedule.ranges.size();
      schedule.ranges.push_back({now, step.until, bytes, 0});
    }
    const std::size_t range = held.at(step.buffer);
    schedule.ranges[range].to = std::max(schedule.ranges[range].to, step.until);
    range_of_swap.push_back(range);
    schedule.swaps.push_back(
        {out ? Copy::Direction::kOut : Copy::Direction::kIn, step.buffer, now, step.until, 0, false});
    schedule.swapped_bytes += out ? bytes : 0;
  }
  schedule.host_bytes = place_in_host(schedule.ranges);
  for (std::size_t i = 0; i < schedule.swaps.size(); ++i)
    if (!schedule.swaps[i].home) schedule.swaps[i].host_offset = schedule.ranges[range_of_swap[i]].offset;
  return schedule;
}

}  // namespace stowage::runtime
