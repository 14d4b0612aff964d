// Graphs of the stand-in (see graphs.h).
#include "graphs.h"

#include <cstring>
#include <memory>
#include <utility>

#include "kernel_memory.h"
#include "kernels.h"
#include "settings.h"
#include "torch_versions.h"
#include "twins.h"

namespace standin {
namespace {

thread_local Capture* tl_capture = nullptr;

void run(const Node& node) {
  counters().graph_kernels.fetch_add(1);
  order::begin_operation(node.op.schema().name() + " of a graph");
  for (const order::Bytes& read : node.reads) order::reads(read.from, read.bytes);
  for (const order::Bytes& write : node.writes) order::writes(write.from, write.bytes);
  torch::jit::Stack stack;
  MadeStorages made;
  for (const c10::IValue& argument : node.arguments) stack.push_back(twins_of(argument, made));
  {
    const InKernel in_kernel(node.taken);
    call_cpu_kernel(node.op, &stack);
  }
  std::size_t next = 0;
  const auto settle = [&](const at::Tensor& result) {
    const Piece& place = node.results.at(next++);
    if (place.at != nullptr && result.storage().data() != place.at)
      std::memcpy(place.at, result.storage().data(), place.bytes);
  };
  for (const c10::IValue& value : stack) for_each_result(value, settle);
}

}  // namespace

void Capture::keep(Piece piece) {
  if (piece.at == nullptr || piece.bytes == 0) return;
  kept_.push_back({piece, std::string(static_cast<const char*>(piece.at), piece.bytes)});
}

void Capture::put_back() {
  for (auto it = kept_.rbegin(); it != kept_.rend(); ++it)
    std::memcpy(it->piece.at, it->content.data(), it->piece.bytes);
  kept_.clear();
}

void Capture::replay() const {
  counters().graph_launches.fetch_add(1);
  queue(current_stream()).wait();
  const std::size_t left_out = settings().wrong_graphs && !nodes_.empty() ? 1 : 0;
  for (std::size_t i = 0; i + left_out < nodes_.size(); ++i) run(nodes_[i]);
}

Capture* capturing() {
  return tl_capture != nullptr && tl_capture->stream() == current_stream() ? tl_capture : nullptr;
}

void refuse_while_capturing(const std::string& what) {
  TORCH_CHECK(tl_capture == nullptr, "stand-in: operation not permitted when stream is capturing: ", what);
}

#ifdef STANDIN_HAS_GRAPHS
namespace {

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& /*arguments*/) {}
  ~Graph() override { reset(); }

  void capture_begin(at::MempoolId_t /*pool*/, at::GraphCaptureMode /*mode*/) override {
    TORCH_CHECK(tl_capture == nullptr, "stand-in: this thread captures already");
    TORCH_CHECK(current_stream() != 0, "stand-in: the default stream cannot capture");
    for (c10::StreamId id = 0; id < kStreams; ++id) queue(id).wait();  // kernels write until put_back()
    capture_ = std::make_unique<Capture>(current_stream());
    tl_capture = capture_.get();
  }
  void capture_end() override {
    TORCH_CHECK(capture_ != nullptr && tl_capture == capture_.get(), "stand-in: this graph does not capture");
    tl_capture = nullptr;
    capture_->put_back();
  }
  void instantiate() override {}
  void replay() override {
    TORCH_CHECK(capture_ != nullptr, "stand-in: an empty graph");
    refuse_while_capturing("a graph");
    capture_->replay();
  }
  void reset() override {
    if (capture_ != nullptr && tl_capture == capture_.get()) {
      tl_capture = nullptr;
      capture_->put_back();
    }
    capture_.reset();
  }
  [[nodiscard]] at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& /*path*/) override {}

 private:
  std::unique_ptr<Capture> capture_;
};

}  // namespace
#endif

}  // namespace standin

#ifdef STANDIN_HAS_GRAPHS
namespace at {  // NOLINT: as PyTorch's registries want it
C10_REGISTER_CLASS(GraphImplRegistry, STANDIN, standin::Graph)
}
#endif
