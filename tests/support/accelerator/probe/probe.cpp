// What a device layer for any accelerator may use, and nothing else: the generic classes of c10 and ATen.
//
//   device           at::accelerator::getAccelerator               memory        c10::getDeviceAllocator
//   streams, events  c10::impl::VirtualGuardImpl, c10::Event       pinned        at::getHostAllocator, at::from_blob
//   interposition    c10::SetAllocator, a front that serves        generator     at::globalContext().defaultGenerator
//                    from an arena, one block after the other
//
// Knows nothing of the stand-in, is linked to libc10 and libtorch_cpu alone.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <atomic>
#include <optional>
#include <vector>

namespace {

c10::DeviceType accelerator() { return at::accelerator::getAccelerator(/*checked=*/true).value(); }

// ---- A front of the device's allocator

at::Tensor g_arena;
std::atomic<std::int64_t> g_used{0}, g_hits{0}, g_misses{0};

bool in_arena(const void* block) {
  const auto* const begin = static_cast<const char*>(g_arena.defined() ? g_arena.const_data_ptr() : nullptr);
  return begin != nullptr && block >= begin && block < begin + g_arena.nbytes();
}

class Front final : public c10::DeviceAllocator {
 public:
  static c10::DeviceAllocator*& below() {
    static c10::DeviceAllocator* b = nullptr;
    return b;
  }
  static void release(void* block) {
    if (!in_arena(block)) below()->raw_deleter()(block);
  }
  c10::DataPtr allocate(std::size_t n) override {
    if (!g_arena.defined() || n == 0) return below()->allocate(n);
    const std::int64_t at = g_used.fetch_add((static_cast<std::int64_t>(n) + 511) / 512 * 512);
    if (at + static_cast<std::int64_t>(n) > static_cast<std::int64_t>(g_arena.nbytes())) {
      g_misses.fetch_add(1);
      return below()->allocate(n);
    }
    g_hits.fetch_add(1);
    char* const block = static_cast<char*>(g_arena.mutable_data_ptr()) + at;
    return {block, block, &release, g_arena.device()};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { below()->copy_data(to, from, n); }
  bool initialized() override { return below()->initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { below()->emptyCache(pool); }
  void recordStream(const c10::DataPtr& block, c10::Stream stream) override { below()->recordStream(block, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex i) override {
    return below()->getDeviceStats(i);
  }
  void resetAccumulatedStats(c10::DeviceIndex i) override { below()->resetAccumulatedStats(i); }
  void resetPeakStats(c10::DeviceIndex i) override { below()->resetPeakStats(i); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex i) override { return below()->getMemoryInfo(i); }
};

void interpose() {
  if (Front::below() != nullptr) return;
  Front::below() = c10::getDeviceAllocator(accelerator());
  c10::SetAllocator(accelerator(), new Front(), /*priority=*/1);
}

void serve_from(const std::optional<at::Tensor>& arena) {
  g_arena = at::Tensor();
  g_used = g_hits = g_misses = 0;
  if (arena.has_value()) g_arena = *arena;
}

// ---- Out to pinned memory and back, on two streams, ordered by events

at::Tensor swapped(const at::Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(accelerator());
  const c10::Stream compute = guard.getStream(x.device());
  const c10::Stream out = guard.getStreamFromGlobalPool(x.device()), back = guard.getStreamFromGlobalPool(x.device());
  c10::DataPtr pinned = at::getHostAllocator(accelerator())->allocate(x.nbytes());
  const at::Tensor room = at::from_blob(pinned.get(), x.sizes(), x.options().device(at::kCPU));
  at::Tensor y = at::zeros_like(x);
  c10::Event made(accelerator()), gone(accelerator()), here(accelerator());
  made.record(compute);
  made.block(out);
  {
    const c10::StreamGuard on(out);
    room.copy_(x, /*non_blocking=*/true);
  }
  gone.record(out);
  gone.block(back);
  made.block(back);
  {
    const c10::StreamGuard on(back);
    y.copy_(room, /*non_blocking=*/true);
  }
  here.record(back);
  here.block(compute);
  return y.clone();  // by a kernel that waits; what was pinned is freed when the copies are done
}

bool generator_goes_back() {
  at::Generator generator = at::globalContext().defaultGenerator(c10::Device(accelerator(), 0));
  const at::Tensor state = generator.get_state();
  const auto options = at::TensorOptions().device(c10::Device(accelerator(), 0));
  const at::Tensor first = at::rand({8}, options);
  generator.set_state(state);
  return at::equal(first, at::rand({8}, options));
}

}  // namespace

TORCH_LIBRARY(standin_probe, m) {
  m.def("interpose() -> ()", &interpose);
  m.def("serve_from(Tensor? arena) -> ()", &serve_from);
  m.def("served() -> int[]", [] { return std::vector<std::int64_t>{g_hits, g_misses}; });
  m.def("swapped(Tensor x) -> Tensor", &swapped);
  m.def("generator_goes_back() -> bool", &generator_goes_back);
}
