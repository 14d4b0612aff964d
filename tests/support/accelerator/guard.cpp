// What c10 asks of a device with streams and events: c10::impl::VirtualGuardImpl, c10::StreamGuard, c10::Event and
// torch.Stream, torch.Event end here.
//
//   record(event, stream)   a mark in the stream's queue, of which the event keeps the newest: {queue, ticket, time}
//   block(event, stream)    a job of the stream that waits for the mark that the event has now
//
// So an event can be recorded again while others still wait for what it was.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>

#include "graphs.h"
#include "memory.h"
#include "order.h"
#include "streams.h"

namespace standin {
namespace {

struct Mark {
  Queue* queue = nullptr;
  Ticket ticket = 0;
  order::Clock after{};  // what the mark comes after
  std::chrono::steady_clock::time_point when;
};
using Event = std::shared_ptr<Mark>;
Event& event_at(void* event) { return *static_cast<Event*>(event); }

void wait_for(c10::StreamId id) {
  refuse_while_capturing("to wait for a stream");
  queue(id).wait();
  order::host_waits(order::given_to(id));
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  [[nodiscard]] c10::DeviceType type() const override { return kType; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  [[nodiscard]] c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "stand-in: there is one device, asked for ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  [[nodiscard]] c10::Stream getStream(c10::Device) const override { return stream(current_stream()); }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(next_of_pool()); }
  [[nodiscard]] c10::Stream getNewStream(c10::Device, int) const override { return stream(next_of_pool()); }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream to) const override { return stream(exchange_stream(to.id())); }
  [[nodiscard]] bool queryStream(const c10::Stream& s) const override {
    if (!queue(s.id()).idle()) return false;
    order::host_waits(order::given_to(s.id()));
    return true;
  }
  void synchronizeStream(const c10::Stream& s) const override { wait_for(s.id()); }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    for (c10::StreamId id = 0; id < kStreams; ++id) wait_for(id);
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    const auto mark = std::make_shared<Mark>();
    mark->queue = &queue(s.id());
    mark->after = order::given_to(s.id());
    if (mark->queue->idle()) {  // nothing to wait for: ticket 0 is always done
      mark->when = std::chrono::steady_clock::now();
    } else {
      mark->ticket = mark->queue->push([mark] { mark->when = std::chrono::steady_clock::now(); });
    }
    event_at(*event) = mark;
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event == nullptr) return;
    const Event mark = event_at(event);
    order::stream_waits(s.id(), mark->after);
    if (mark->queue->done(mark->ticket)) return;
    queue(s.id()).push([mark] { mark->queue->wait(mark->ticket); });
  }
  [[nodiscard]] bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const Event& mark = event_at(event);
    if (!mark->queue->done(mark->ticket)) return false;
    order::host_waits(mark->after);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Event& mark = event_at(event);
    mark->queue->wait(mark->ticket);
    order::host_waits(mark->after);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  [[nodiscard]] double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(event_at(to)->when - event_at(from)->when).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& block, const c10::Stream& s) const override {
    used_on(block.get(), s.id());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace standin
