#include "planner/assemble.h"

#include <algorithm>

#include "graph/liveness.h"

namespace stowage {

std::vector<std::int64_t> step_starts(const Graph& graph, std::span<const OpId> order) {
  std::vector<std::int64_t> start(order.size() + 1, 0);
  for (std::size_t step = 0; step < order.size(); ++step) start[step + 1] = start[step] + graph.op(order[step]).ticks;
  return start;
}

namespace {

// Writes a timeline step by step.
class TimelineWriter {
 public:
  TimelineWriter(const Graph& graph, std::span<const OpId> order, std::span<const TakeoverAt> used)
      : graph_(graph),
        order_(order),
        next_(used.begin()),
        end_(used.end()),
        live_(lifetimes(graph, order)),
        start_(step_starts(graph, order)),
        item_(graph.buffers.size(), -1) {}

  Timeline run() {
    for (std::size_t step = 0; step < order_.size(); ++step) {
      for (; next_ != end_ && next_->step == static_cast<std::int32_t>(step); ++next_) take_over(next_->pair);
      place_created(step);
    }
    for (std::size_t step = 0; step < order_.size(); ++step) place_scratch(step);
    return std::move(out_);
  }

 private:
  void take_over(const Takeover& pair) {
    const std::int32_t item = item_[pair.read];
    item_[pair.created] = item;
    out_.items[item].upper = start_[live_[pair.created].to];
    out_.items[item].bytes = std::max(out_.items[item].bytes, padded(pair.created));
  }

  void place_created(std::size_t step) {
    const Op& op = graph_.op(order_[step]);
    std::vector<std::pair<BufferId, std::int32_t>> born;
    for (std::size_t i = 0; i < op.creates.size(); ++i) born.emplace_back(op.creates[i], born_tick(op, i));
    std::sort(born.begin(), born.end());
    for (const auto& [buffer, tick] : born) {
      const Lifetime span = live_[buffer];
      std::int32_t& item = item_[buffer];
      if (item < 0) item = add({start_[step] + tick, start_[span.to], padded(buffer)});
      out_.placements.push_back({buffer, span.from, span.to, 0});
      out_.item_of.push_back(item);
    }
  }

  void place_scratch(std::size_t step) {
    const Op& op = graph_.op(order_[step]);
    for (std::size_t i = 0; i < op.scratch.size(); ++i) {
      const Scratch& s = op.scratch[i];
      out_.scratch.push_back({static_cast<std::int32_t>(step), static_cast<std::int32_t>(i), 0});
      out_.item_of.push_back(add({start_[step] + s.from, start_[step] + s.to, graph_.padded(s.bytes)}));
    }
  }

  std::int32_t add(const LayoutItem& item) {
    out_.items.push_back(item);
    return static_cast<std::int32_t>(out_.items.size()) - 1;
  }
  [[nodiscard]] std::int64_t padded(BufferId id) const { return graph_.padded(graph_.buffer(id).bytes); }

  const Graph& graph_;
  std::span<const OpId> order_;
  std::span<const TakeoverAt>::iterator next_, end_;
  IdVector<BufferId, Lifetime> live_;
  std::vector<std::int64_t> start_;
  IdVector<BufferId, std::int32_t> item_;
  Timeline out_;
};

}  // namespace

Timeline timeline(const Graph& graph, std::span<const OpId> order, std::span<const TakeoverAt> used) {
  return TimelineWriter(graph, order, used).run();
}

Plan assemble(const Graph& graph, std::span<const OpId> order, Timeline timeline, const LayoutResult& layout) {
  Plan plan;
  plan.graph_sha256 = graph.sha256;
  plan.align = graph.align;
  plan.arena_bytes = layout.height_bytes;
  for (const OpId op : order) plan.steps.push_back(Step::run(op));
  for (std::size_t i = 0; i < timeline.placements.size(); ++i)
    timeline.placements[i].offset = layout.offsets[timeline.item_of[i]];
  for (std::size_t i = 0; i < timeline.scratch.size(); ++i)
    timeline.scratch[i].offset = layout.offsets[timeline.item_of[timeline.placements.size() + i]];
  plan.placements = std::move(timeline.placements);
  plan.scratch = std::move(timeline.scratch);
  return plan;
}

}  // namespace stowage
