// What is live at the heaviest tick of a plan.
//
//   bytes ┤      ┌──┐◀── the moment: everyone whose rectangle of time and address it cuts
//         │  ┌───┘  └─┐
//         └──┴────────┴──▶ ticks
#include <algorithm>
#include <utility>

#include "plan/occupancy.h"
#include "stowage/explain.h"

namespace stowage {
namespace {

using checker::Tenant;
using checker::Time;

// The first time at which most bytes are live.
std::pair<Time, std::int64_t> heaviest(const std::vector<Tenant>& tenants) {
  std::vector<std::pair<Time, std::int64_t>> changes;
  for (const Tenant& t : tenants) {
    changes.emplace_back(t.start, t.bytes);
    changes.emplace_back(t.end, -t.bytes);
  }
  std::sort(changes.begin(), changes.end());  // at one time, what leaves comes first
  Time when = 0;
  std::int64_t live = 0, most = 0;
  for (const auto& [time, bytes] : changes) {
    live += bytes;
    if (live > most) most = live, when = time;
  }
  return {when, most};
}

bool touches(const Op& op, BufferId buffer) {
  const auto in = [&](const std::vector<BufferId>& list) {
    return std::find(list.begin(), list.end(), buffer) != list.end();
  };
  return in(op.reads) || in(op.writes) || in(op.creates);
}

OpId last_user(const Graph& graph, const Plan& plan, const Placement& placement) {
  for (std::int32_t s = placement.to; s-- > placement.from;) {
    const Step& step = plan.steps[static_cast<std::size_t>(s)];
    if (step.kind == Step::Kind::kRun && touches(graph.op(step.op), placement.buffer)) return step.op;
  }
  return {};
}

}  // namespace

PeakMoment peak_moment(const Graph& graph, const Plan& plan) {
  std::vector<Tenant> tenants = checker::list_tenants(graph, plan);
  for (Tenant& t : tenants) t.bytes = graph.padded(t.bytes);
  const auto [when, most] = heaviest(tenants);
  PeakMoment peak;
  peak.bytes = most;
  if (most == 0) return peak;
  peak.step = static_cast<std::int32_t>(when >> 32);
  const Step& step = plan.steps[static_cast<std::size_t>(peak.step)];
  if (step.kind == Step::Kind::kRun) peak.op = step.op;
  for (const Tenant& t : tenants) {
    if (t.start > when || t.end <= when) continue;
    if (t.placement < 0) {
      peak.scratch_bytes += t.bytes;
      peak.holders.push_back({{}, t.bytes, peak.op, peak.op});
      continue;
    }
    const Placement& placement = plan.placements[static_cast<std::size_t>(t.placement)];
    const Step& made = plan.steps[static_cast<std::size_t>(placement.from)];
    peak.of_kind[static_cast<std::size_t>(graph.buffer(placement.buffer).kind)] += t.bytes;
    peak.holders.push_back({placement.buffer, t.bytes, made.kind == Step::Kind::kRun ? made.op : OpId(),
                            last_user(graph, plan, placement)});
  }
  std::stable_sort(peak.holders.begin(), peak.holders.end(),
                   [](const PeakHolder& a, const PeakHolder& b) { return a.bytes > b.bytes; });
  return peak;
}

}  // namespace stowage
