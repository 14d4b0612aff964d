#include "support/recurrent_graph.h"

#include <string>
#include <utility>
#include <vector>

#include "stowage/io.h"

namespace stowage::testing {
namespace {

using Ids = std::vector<BufferId>;

class RecurrentWriter {
 public:
  explicit RecurrentWriter(const RecurrentOptions& options) : o_(options) {}

  Graph run() {
    graph_.name = "recurrent";
    graph_.align = 64;
    const std::int64_t wide = o_.state_bytes * o_.gates;
    for (int l = 0; l < o_.layers; ++l) weights_.push_back({weight(wide * 4), weight(wide * 8)});
    out_ = weight(o_.state_bytes);
    forward();
    backward();
    for (const Weight& w : all_) update(w);
    validate(graph_);
    seal(graph_);
    return graph_;
  }

 private:
  struct Weight {
    BufferId value, state, gradient;
  };
  // What backward needs of one cell.
  struct Cell {
    BufferId input, before, carried_before, carried, bent;
    Ids gates;
  };

  BufferId buffer(std::int64_t bytes, BufferKind kind, bool resident = false) {
    graph_.buffers.push_back({"b" + std::to_string(graph_.buffers.size()), bytes, kind, resident, false, ""});
    return BufferId(graph_.buffers.size() - 1);
  }
  BufferId state() { return buffer(o_.state_bytes, BufferKind::kActivation); }
  BufferId wide() { return buffer(o_.state_bytes * o_.gates, BufferKind::kActivation); }

  std::size_t weight(std::int64_t bytes) {
    all_.push_back({buffer(bytes, BufferKind::kParameter, true), buffer(bytes, BufferKind::kOptimizerState, true), {}});
    return all_.size() - 1;
  }

  // Creates `made`; it may lie over any read of its size when `elementwise`.
  BufferId op(const char* target, Ids reads, BufferId made, bool elementwise = false) {
    Op op;
    op.name = std::string(target) + std::to_string(graph_.ops.size());
    op.target = std::string("aten::") + target;
    op.cost_ns = 1000;
    if (elementwise)
      for (const BufferId r : reads)
        if (!graph_.buffer(r).resident && graph_.buffer(r).bytes == graph_.buffer(made).bytes)
          op.takeover.push_back({r, made});
    op.reads = std::move(reads);
    op.creates = {made};
    graph_.ops.push_back(std::move(op));
    return made;
  }
  void write(const char* target, Ids reads, BufferId written) {
    Op op;
    op.name = std::string(target) + std::to_string(graph_.ops.size());
    op.target = std::string("aten::") + target;
    op.cost_ns = 1000;
    op.reads = std::move(reads);
    op.reads.push_back(written);
    op.writes = {written};
    graph_.ops.push_back(std::move(op));
  }

  Cell cell(int layer, BufferId input, BufferId before, BufferId carried) {
    Cell c{input, before, carried, {}, {}, {}};
    const BufferId a = op("addmm", {input, all_[weights_[layer].first].value}, wide());
    const BufferId b = op("addmm", {before, all_[weights_[layer].second].value}, wide());
    const BufferId sum = op("add", {a, b}, wide(), true);
    for (int g = 0; g < o_.gates; ++g) c.gates.push_back(op("sigmoid", {sum}, state()));
    if (o_.gates == 1) {
      c.bent = c.gates[0];
      return c;
    }
    const BufferId kept = op("mul", {c.gates[0], carried}, state(), true);
    const BufferId added = op("mul", {c.gates[1], c.gates[2]}, state(), true);
    c.carried = op("add", {kept, added}, state(), true);
    const BufferId squashed = op("tanh", {c.carried}, state());
    c.bent = o_.gates == 4 ? op("mul", {squashed, c.gates[3]}, state(), true) : squashed;
    return c;
  }

  void forward() {
    Ids hidden, carried;
    for (int l = 0; l < o_.layers; ++l) {
      hidden.push_back(op("zeros", {}, state()));
      carried.push_back(op("zeros", {}, state()));
    }
    for (int t = 0; t < o_.steps; ++t) {
      BufferId now = buffer(o_.state_bytes / 16 + 4, BufferKind::kInput, true);
      for (int l = 0; l < o_.layers; ++l) {
        cells_.push_back(cell(l, now, hidden[l], carried[l]));
        hidden[l] = now = cells_.back().bent;
        if (o_.gates > 1) carried[l] = cells_.back().carried;
      }
      if (o_.each_output || t + 1 == o_.steps)
        outputs_.push_back(op("linear", {now, all_[out_].value}, buffer(32, BufferKind::kActivation)));
    }
    const BufferId all =
        op("cat", outputs_, buffer(32 * static_cast<std::int64_t>(outputs_.size()), BufferKind::kActivation));
    loss_ = op("mse_loss", {all}, buffer(4, BufferKind::kOutput));
    graph_.buffers[loss_.index()].returned = true;
    gradient_ =
        op("mse_loss_backward", {all}, buffer(32 * static_cast<std::int64_t>(outputs_.size()), BufferKind::kGradient));
  }

  // Makes the gradient the first time, and adds to it later.
  void accumulate(std::size_t weight, Ids reads) {
    Weight& w = all_[weight];
    const std::int64_t bytes = graph_.buffer(w.value).bytes;
    if (!w.gradient.valid()) {
      w.gradient = op("mm", std::move(reads), buffer(bytes, BufferKind::kGradient));
      return;
    }
    const BufferId part = op("mm", std::move(reads), buffer(bytes, BufferKind::kTemporary));
    write("add_", {part}, w.gradient);
  }

  BufferId sum(BufferId a, BufferId b) {
    return a.valid() && b.valid() ? op("add", {a, b}, state(), true) : a.valid() ? a : b;
  }

  void backward() {
    Ids hidden(static_cast<std::size_t>(o_.layers)), carried(static_cast<std::size_t>(o_.layers));
    for (int t = o_.steps; t-- > 0;) {
      BufferId from_above;
      if (o_.each_output || t + 1 == o_.steps) {
        accumulate(out_, {gradient_, cells_[static_cast<std::size_t>(t * o_.layers + o_.layers - 1)].bent});
        from_above = op("mm", {gradient_, all_[out_].value}, state());
      }
      for (int l = o_.layers; l-- > 0;) {
        const Cell& c = cells_[static_cast<std::size_t>(t * o_.layers + l)];
        const BufferId above = sum(from_above, hidden[l]);
        Ids parts;
        BufferId flow = above;
        if (o_.gates == 4) parts.push_back(op("mul", {above, c.carried}, state()));
        if (o_.gates > 1) {
          flow = sum(op("tanh_backward", {above, c.carried}, state()), carried[l]);
          parts.push_back(op("mul", {flow, c.carried_before}, state()));
          carried[l] = op("mul", {flow, c.gates[0]}, state());
          parts.push_back(op("mul", {flow, c.gates[1]}, state()));
          parts.push_back(op("mul", {flow, c.gates[2]}, state(), true));
        } else {
          parts.push_back(op("tanh_backward", {flow, c.bent}, state(), true));
        }
        for (std::size_t g = 0; g < parts.size(); ++g)
          parts[g] = op("sigmoid_backward", {parts[g], c.gates[g % c.gates.size()]}, state(), true);
        const BufferId gates = op("cat", parts, wide());
        accumulate(weights_[l].first, {gates, c.input});
        accumulate(weights_[l].second, {gates, c.before});
        from_above = op("mm", {gates, all_[weights_[l].first].value}, state());
        hidden[l] = op("mm", {gates, all_[weights_[l].second].value}, state());
      }
    }
  }

  void update(const Weight& w) {
    const std::int64_t bytes = graph_.buffer(w.value).bytes;
    BufferId made = w.gradient;
    for (int i = 0; i < o_.temporaries; ++i)
      made = op("mul", {made, w.state}, buffer(bytes, BufferKind::kTemporary), i > 0);
    write("addcmul_", {w.gradient}, w.state);
    write("sub_", {made}, w.value);
  }

  RecurrentOptions o_;
  Graph graph_;
  std::vector<Weight> all_;
  std::vector<std::pair<std::size_t, std::size_t>> weights_;  // of each layer: of its input, of its state
  std::size_t out_ = 0;
  std::vector<Cell> cells_;
  Ids outputs_;
  BufferId loss_, gradient_;
};

}  // namespace

Graph recurrent_graph(const RecurrentOptions& options) { return RecurrentWriter(options).run(); }

}  // namespace stowage::testing
