#include "report/curve.h"

#include <algorithm>

#include "graph/liveness.h"

namespace stowage::report {
namespace {

Rect placed(const Plan& plan, const Pieces& pieces, const checker::Tenant& tenant) {
  const Placement& placement = plan.placements[static_cast<std::size_t>(tenant.placement)];
  const auto step = static_cast<std::size_t>(placement.from);
  Rect rect;
  rect.buffer = placement.buffer;
  if (plan.steps[step].kind == Step::Kind::kSwapIn) {
    rect.origin = Origin::kSwapIn;
    return rect;
  }
  rect.op = plan.steps[step].op;
  rect.origin = pieces.again(placement.from) ? Origin::kRecompute : Origin::kRun;
  if (step_of(tenant.start) > placement.from) rect.over = pieces.reused_input(placement);
  return rect;
}

Rect scratch(const Plan& plan, const checker::Tenant& tenant) {
  Rect rect;
  rect.op = plan.steps[static_cast<std::size_t>(plan.scratch[static_cast<std::size_t>(tenant.scratch)].step)].op;
  rect.origin = Origin::kScratch;
  return rect;
}

struct Change {
  Time at;
  std::int64_t bytes;
};

}  // namespace

std::vector<Rect> plan_rects(const Graph& graph, const Plan& plan, const Pieces& pieces) {
  std::vector<Rect> rects;
  for (const checker::Tenant& tenant : checker::list_tenants(graph, plan)) {
    Rect rect = tenant.placement >= 0 ? placed(plan, pieces, tenant) : scratch(plan, tenant);
    rect.start = tenant.start;
    rect.end = tenant.end;
    rect.offset = tenant.offset;
    rect.bytes = tenant.bytes;
    rects.push_back(rect);
  }
  std::ranges::stable_sort(rects, {}, &Rect::start);
  return rects;
}

std::vector<Rect> program_rects(const Graph& graph) {
  const std::vector<OpId> order = program_order(graph);
  const IdVector<BufferId, Lifetime> lives = lifetimes(graph, order);
  std::vector<Rect> rects;
  for (const OpId id : order) {
    const Op& op = graph.op(id);
    const auto add = [&](BufferId buffer, Time start, Time end, std::int64_t bytes) {
      if (bytes > 0)
        rects.push_back({buffer, id, start, end, -1, bytes, buffer.valid() ? Origin::kRun : Origin::kScratch, {}});
    };
    for (std::size_t i = 0; i < op.creates.size(); ++i) {
      const BufferId b = op.creates[i];
      add(b, time_at(id.value, born_tick(op, i)), time_at(lives[b].to, 0), graph.buffer(b).bytes);
    }
    for (const Scratch& s : op.scratch) add({}, time_at(id.value, s.from), time_at(id.value, s.to), s.bytes);
  }
  return rects;
}

Curve live_curve(const Graph& graph, const std::vector<Rect>& rects, std::size_t steps) {
  std::vector<Change> changes;
  for (const Rect& rect : rects) {
    changes.push_back({rect.start, graph.padded(rect.bytes)});
    changes.push_back({rect.end, -graph.padded(rect.bytes)});
  }
  std::ranges::sort(changes, {}, &Change::at);
  Curve curve;
  std::int64_t now = 0;
  std::size_t next = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto id = static_cast<std::int64_t>(step);
    for (; next < changes.size() && changes[next].at <= time_at(id, 0); ++next) now += changes[next].bytes;
    std::int64_t most = now;
    std::int32_t tick = 0;
    while (next < changes.size() && changes[next].at < time_at(id + 1, 0)) {
      const Time at = changes[next].at;
      for (; next < changes.size() && changes[next].at == at; ++next) now += changes[next].bytes;
      if (now > most) most = now, tick = tick_of(at);
    }
    curve.live_bytes.push_back(most);
    curve.heaviest.push_back(tick);
    if (curve.peak_step < 0 || most > curve.peak_bytes)
      curve.peak_step = static_cast<std::int32_t>(step), curve.peak_bytes = most;
  }
  return curve;
}

}  // namespace stowage::report
