#include "support/training_graph.h"

#include <string>

#include "stowage/io.h"

namespace stowage::testing {
namespace {

class Writer {
 public:
  explicit Writer(const TrainingGraphOptions& options) : o_(options) {}

  Graph run() {
    graph_.name = "training";
    for (int i = 0; i < o_.layers; ++i) {
      weights_.push_back(buffer(o_.weight_bytes, BufferKind::kParameter));
      states_.push_back(buffer(o_.weight_bytes, BufferKind::kOptimizerState));
    }
    forward();
    backward();
    for (int i = 0; i < o_.layers; ++i) update(i);
    validate(graph_);
    seal(graph_);
    return graph_;
  }

 private:
  BufferId buffer(std::int64_t bytes, BufferKind kind) {
    Buffer b;
    b.name = "b" + std::to_string(graph_.buffers.size());
    b.bytes = bytes;
    b.kind = kind;
    b.resident = kind == BufferKind::kParameter || kind == BufferKind::kOptimizerState || kind == BufferKind::kInput;
    graph_.buffers.push_back(b);
    return BufferId(graph_.buffers.size() - 1);
  }

  Op& op(const char* name, std::vector<BufferId> reads, std::vector<BufferId> writes, std::vector<BufferId> creates) {
    Op result;
    result.name = name;
    result.target = name;
    result.reads = std::move(reads);
    result.writes = std::move(writes);
    result.creates = std::move(creates);
    graph_.ops.push_back(result);
    return graph_.ops.back();
  }

  void forward() {
    inputs_.push_back(buffer(o_.activation_bytes, BufferKind::kInput));
    for (int i = 0; i < o_.layers; ++i) {
      const BufferId hidden = buffer(2 * o_.activation_bytes, BufferKind::kActivation);
      const BufferId out = buffer(o_.activation_bytes, BufferKind::kActivation);
      op("mm", {weights_[i], inputs_[i]}, {}, {hidden});
      op("relu", {hidden}, {}, {out});
      hidden_.push_back(hidden);
      inputs_.push_back(out);
    }
    const BufferId loss = buffer(4, BufferKind::kOutput);
    graph_.buffers[loss.index()].returned = true;
    gradient_ = buffer(o_.activation_bytes, BufferKind::kTemporary);
    op("loss", {inputs_.back()}, {}, {loss});
    op("loss_backward", {inputs_.back()}, {}, {gradient_});
  }

  void backward() {
    for (int i = o_.layers - 1; i >= 0; --i) {
      BufferId hidden = hidden_[i];
      if (o_.recompute) {
        hidden = buffer(2 * o_.activation_bytes, BufferKind::kTemporary);
        op("mm", {weights_[i], inputs_[i]}, {}, {hidden});
      }
      const BufferId inner = buffer(2 * o_.activation_bytes, BufferKind::kTemporary);
      op("relu_backward", {hidden, gradient_}, {}, {inner}).scratch = {{128, 0, 1}};
      const BufferId weight_gradient = buffer(o_.weight_bytes, BufferKind::kGradient);
      op("mm", {inputs_[i], inner}, {}, {weight_gradient});
      gradients_.insert(gradients_.begin(), weight_gradient);
      gradient_ = buffer(o_.activation_bytes, BufferKind::kTemporary);
      op("mm", {weights_[i], inner}, {}, {gradient_});
    }
  }

  void update(int i) {
    op("addcmul_", {gradients_[i]}, {states_[i]}, {});
    BufferId last = gradients_[i];
    for (int t = 0; t < o_.temporaries; ++t) {
      const BufferId next = buffer(o_.weight_bytes, BufferKind::kTemporary);
      op("sqrt", {t == 0 ? states_[i] : last}, {}, {next});
      last = next;
    }
    op("addcdiv_", {last}, {weights_[i]}, {});
  }

  TrainingGraphOptions o_;
  Graph graph_;
  std::vector<BufferId> weights_, states_, inputs_, hidden_, gradients_;
  BufferId gradient_;
};

}  // namespace

Graph training_graph(const TrainingGraphOptions& options) { return Writer(options).run(); }

}  // namespace stowage::testing
