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

#include "memory.h"
#include "streams.h"

namespace standin {
namespace {

struct Mark {
  Queue* queue = nullptr;
  Ticket ticket = 0;
  std::chrono::steady_clock::time_point when;
};
using Event = std::shared_ptr<Mark>;
Event& event_at(void* event) { return *static_cast<Event*>(event); }

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
  [[nodiscard]] bool queryStream(const c10::Stream& s) const override { return queue(s.id()).idle(); }
  void synchronizeStream(const c10::Stream& s) const override { queue(s.id()).wait(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait_for_all_streams(); }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    const auto mark = std::make_shared<Mark>();
    mark->queue = &queue(s.id());
    if (mark->queue->idle()) {  // nothing to wait for: ticket 0 is always done
      mark->when = std::chrono::steady_clock::now();
    } else {
      mark->ticket = mark->queue->push([mark] { mark->when = std::chrono::steady_clock::now(); });
    }
    event_at(*event) = mark;
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event == nullptr || queryEvent(event)) return;
    queue(s.id()).push([mark = event_at(event)] { mark->queue->wait(mark->ticket); });
  }
  [[nodiscard]] bool queryEvent(void* event) const override {
    return event == nullptr || event_at(event)->queue->done(event_at(event)->ticket);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) event_at(event)->queue->wait(event_at(event)->ticket);
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
