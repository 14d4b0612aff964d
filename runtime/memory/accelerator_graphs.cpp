#include "runtime/memory/accelerator_graphs.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/memory/front.h"

#if __has_include(<ATen/accelerator/Graph.h>)
#include <ATen/accelerator/Graph.h>
#define STOWAGE_GENERIC_GRAPHS
#endif

namespace stowage::runtime {
namespace {

std::map<c10::DeviceType, WayOfGraphs>& known_graphs() {
  static auto& known = *new std::map<c10::DeviceType, WayOfGraphs>();
  return known;
}

#ifdef STOWAGE_GENERIC_GRAPHS
class GenericCapture final : public Capture {
 public:
  void begin() override { graph_.capture_begin({0, 0}, at::GraphCaptureMode::ThreadLocal); }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::accelerator::Graph graph_;
};

std::unique_ptr<Capture> generic_capture() { return std::make_unique<GenericCapture>(); }
c10::Stream stream_of_pool(c10::Device where) {
  return c10::impl::VirtualGuardImpl(where.type()).getStreamFromGlobalPool(where);
}
#endif

// None: `capture` is nullptr.
WayOfGraphs way_of(c10::DeviceType type) {
  if (const auto known = known_graphs().find(type); known != known_graphs().end()) return known->second;
#ifdef STOWAGE_GENERIC_GRAPHS
  if (at::has_graph_impl(type)) return {&generic_capture, &stream_of_pool};
#endif
  return {};
}

// Of one device.
struct Shared {
  Shared(c10::Device where, c10::Stream stream) : stream(stream), order(device_at(where).order()) {
    FrontBlocks::watch(stream.id());
  }

  std::mutex mutex;
  c10::Stream stream;
  std::unique_ptr<Device::Order> order;  // of all that works in what libraries keep for the stream
};

Shared& shared(c10::Device where, const WayOfGraphs& way) {
  static std::mutex mutex;
  static auto& of_devices = *new std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::unique_ptr<Shared>>();
  const std::lock_guard lock(mutex);
  std::unique_ptr<Shared>& found = of_devices[{where.type(), where.index()}];
  if (!found) {
    const c10::DeviceGuard there(where);
    found = std::make_unique<Shared>(where, way.stream(where));
  }
  return *found;
}

class StreamGraph final : public Device::Graph {
 public:
  StreamGraph(std::unique_ptr<Capture> capture, Shared& shared)
      : capture_(std::move(capture)), shared_(shared), freed_(FrontBlocks::freed(shared.stream.id())) {}

  [[nodiscard]] bool holds() const override { return FrontBlocks::freed(shared_.stream.id()) == freed_; }
  void replay() override {
    const std::lock_guard lock(shared_.mutex);
    shared_.order->begin();
    capture_->replay();
    shared_.order->end();
  }

 private:
  std::unique_ptr<Capture> capture_;
  Shared& shared_;
  std::int64_t freed_;
};

class StreamGraphs final : public Device::Graphs {
 public:
  StreamGraphs(c10::Device where, const WayOfGraphs& way)
      : guard_(where.type()), where_(where), way_(way), shared_(shared(where, way)) {}

  void warm_up(const std::function<void()>& work) override {
    const std::lock_guard lock(shared_.mutex);
    const c10::Stream now = guard_.getStream(where_);
    follow(now, shared_.stream);
    std::exception_ptr error;
    {
      const c10::StreamGuard on(shared_.stream);
      shared_.order->begin();
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      shared_.order->end();
    }
    follow(shared_.stream, now);  // where the work has stopped, too: kernels that it has asked for still run
    if (error) std::rethrow_exception(error);
  }

  std::unique_ptr<Device::Graph> note(const std::function<void()>& work) override {
    const std::lock_guard lock(shared_.mutex);
    std::unique_ptr<Capture> capture = way_.capture();
    const c10::StreamGuard on(shared_.stream);
    capture->begin();
    try {
      work();
    } catch (...) {
      try {
        capture->end();
      } catch (...) {  // what went wrong first is told
      }
      throw;
    }
    capture->end();
    return std::make_unique<StreamGraph>(std::move(capture), shared_);
  }

 private:
  void follow(const c10::Stream& first, const c10::Stream& then) const {
    c10::Event done(where_.type());
    done.record(first);
    done.block(then);
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Device where_;
  WayOfGraphs way_;
  Shared& shared_;
};

}  // namespace

bool know_graphs(c10::DeviceType type, WayOfGraphs way) { return known_graphs().emplace(type, way).second; }

std::unique_ptr<Device::Graphs> stream_graphs(c10::Device where) {
  const WayOfGraphs way = way_of(where.type());
  return way.capture == nullptr ? nullptr : std::make_unique<StreamGraphs>(where, way);
}

}  // namespace stowage::runtime
