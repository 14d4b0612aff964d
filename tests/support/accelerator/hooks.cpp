// A PrivateUse1 accelerator for tests: it behaves as a GPU does, and computes the CPU's bits.
//
//   PyTorch ── dispatcher ──► kernels.cpp, copies.cpp, autocast.cpp, attention.cpp, lstm.cpp, graphs.cpp
//           ── c10 ─────────► memory.cpp (allocator), guard.cpp (streams, events), pinned.cpp (host memory)
//           ── at hooks ────► this file: is there a device, its generators (generator.cpp), pinned memory
//
//   order.cpp finds waits that are left out; settings.cpp is the face that standin.py speaks to.
//
// Known limits: one device. Kernels run on the caller's thread, so the host never runs ahead of them. No cache in the
// allocator: reserved is what is taken. Memory of kernels' helper threads is the host's. Recurrent cells are fused, as
// on GPUs, and have bits of their own. No sparse or quantized tensors. Graphs from torch 2.13 on. Module.to() makes new Parameters,
// which unties tied ones (standin.move() keeps them).
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "generator.h"
#include "mapping.h"
#include "memory.h"
#include "pinned.h"
#include "settings.h"
#include "streams.h"

namespace standin {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }

  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(on_device(data), "stand-in: not a device address");
    return kDevice;
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
    queue(current_stream()).wait();
    c10::DataPtr to = bytes == 0 ? c10::DataPtr(nullptr, kDevice) : c10::GetAllocator(kType)->allocate(bytes);
    if (const std::size_t kept = std::min(bytes, impl.nbytes()); kept > 0) {
      std::memcpy(kernels_view(to.get()), kernels_view(impl.data()), kept);
    }
    impl.set_data_ptr_noswap(std::move(to));
    impl.set_nbytes(bytes);
  }
};

const bool g_registered = [] {
  c10::register_privateuse1_backend("standin");
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  c10::SetAllocator(kType, &allocator(), /*priority=*/0);
  at::setHostAllocator(kType, &pinned_allocator());
  at::globalContext().lazyInitDevice(kType);  // else is_pinned() says no without asking
  return true;
}();

}  // namespace
}  // namespace standin

TORCH_LIBRARY(standin, m) {
  m.def("default_generator() -> Generator?", [] { return standin::default_generator(); });
}
