#include "layout/timeline.h"

#include <algorithm>
#include <utility>

#include "layout/narrowing_fit.h"

namespace stowage {
namespace {

class TimelineWriter {
 public:
  TimelineWriter(const Graph& graph, std::vector<Step> steps) : graph_(graph), latest_(graph.buffers.size(), -1) {
    out_.steps = std::move(steps);
    out_.start.reserve(out_.steps.size() + 1);
    out_.start.push_back(0);
    for (const Step& step : out_.steps)
      out_.start.push_back(out_.start.back() + (step.kind == Step::Kind::kRun ? graph.op(step.op).ticks : 1));
  }

  Timeline run(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) place(piece);
    for (std::size_t step = 0; step < out_.steps.size(); ++step)
      if (out_.steps[step].kind == Step::Kind::kRun) place_scratch(step, graph_.op(out_.steps[step].op));
    return std::move(out_);
  }

 private:
  void place(const Piece& piece) {
    const std::int64_t bytes = graph_.padded(graph_.buffer(piece.buffer).bytes);
    std::int32_t& item = latest_[piece.buffer];
    if (piece.over.valid()) {
      item = latest_[piece.over];
      LayoutItem& joined = out_.items[item];
      joined.upper = out_.start[piece.to];
      // What lies over another is no larger, so widths only fall. Of several steps down the one that leaves the most.
      const std::int64_t width = narrows(joined) ? joined.narrow_bytes : joined.bytes;
      if (bytes > 0 && bytes < width && width - bytes >= joined.bytes - width) {
        joined.narrow_from = out_.start[piece.from + 1];
        joined.narrow_bytes = bytes;
      }
    } else {
      item = add({out_.start[piece.from] + piece.tick, out_.start[piece.to], bytes});
    }
    out_.placements.push_back({piece.buffer, piece.from, piece.to, 0});
    out_.item_of.push_back(item);
  }

  void place_scratch(std::size_t step, const Op& op) {
    for (std::size_t i = 0; i < op.scratch.size(); ++i) {
      const Scratch& s = op.scratch[i];
      out_.scratch.push_back({static_cast<std::int32_t>(step), static_cast<std::int32_t>(i), 0});
      out_.item_of.push_back(add({out_.start[step] + s.from, out_.start[step] + s.to, graph_.padded(s.bytes)}));
    }
  }

  std::int32_t add(const LayoutItem& item) {
    out_.items.push_back(item);
    return static_cast<std::int32_t>(out_.items.size()) - 1;
  }

  const Graph& graph_;
  IdVector<BufferId, std::int32_t> latest_;  // item of the latest piece of each buffer
  Timeline out_;
};

}  // namespace

Timeline timeline(const Graph& graph, std::vector<Step> steps, std::span<const Piece> pieces) {
  return TimelineWriter(graph, std::move(steps)).run(pieces);
}

Timeline timeline(const OrderedGraph& ordered, std::span<const ReuseAt> used) {
  const Graph& graph = ordered.analysed->graph;
  std::vector<Step> steps;
  steps.reserve(ordered.order.size());
  std::vector<Piece> pieces;
  pieces.reserve(graph.buffers.size());
  auto next = used.begin();
  for (const OpId id : ordered.order) {
    const auto now = static_cast<std::int32_t>(steps.size());
    steps.push_back(Step::run(id));
    const Op& op = graph.op(id);
    const auto first = static_cast<std::ptrdiff_t>(pieces.size());
    for (std::size_t i = 0; i < op.creates.size(); ++i) {
      const Lifetime live = ordered.live[op.creates[i]];
      pieces.push_back({op.creates[i], live.from, live.to, born_tick(op, i), {}});
    }
    std::sort(pieces.begin() + first, pieces.end(), [](const Piece& a, const Piece& b) { return a.buffer < b.buffer; });
    for (; next != used.end() && next->step == now; ++next)
      for (auto piece = pieces.begin() + first; piece != pieces.end(); ++piece)
        if (piece->buffer == next->pair.created) piece->over = next->pair.read;
  }
  return timeline(graph, std::move(steps), pieces);
}

Plan assemble(const Graph& graph, Timeline timeline, const LayoutResult& layout) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = graph.align;
  plan.arena_bytes = layout.height_bytes;
  const std::size_t placed = timeline.placements.size();
  for (std::size_t i = 0; i < placed; ++i) timeline.placements[i].offset = layout.offsets[timeline.item_of[i]];
  for (std::size_t i = 0; i < timeline.scratch.size(); ++i)
    timeline.scratch[i].offset = layout.offsets[timeline.item_of[placed + i]];
  plan.steps = std::move(timeline.steps);
  plan.placements = std::move(timeline.placements);
  plan.scratch = std::move(timeline.scratch);
  return plan;
}

}  // namespace stowage
