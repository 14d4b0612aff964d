// The router of kernels' memory (see kernel_memory.h).
#include "kernel_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "mapping.h"
#include "streams.h"

namespace standin {
namespace {

thread_local int tl_depth = 0;

class Router final : public c10::Allocator {
 public:
  explicit Router(c10::Allocator* host) : host_(host) {}

  c10::DataPtr allocate(std::size_t n) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }

  c10::DataPtr take(void* view) {
    const std::lock_guard lock(mutex_);
    const auto it = blocks_.find(view);
    TORCH_INTERNAL_ASSERT(it != blocks_.end(), "stand-in: not a kernel's memory");
    c10::DataPtr block = std::move(it->second);
    blocks_.erase(it);
    return block;
  }
  void free_on_host(void* data) { host_->raw_deleter()(data); }

 private:
  c10::Allocator* host_;
  std::mutex mutex_;
  std::unordered_map<void*, c10::DataPtr> blocks_;  // by address in the kernels' view
};

Router* g_router = nullptr;

void release(void* data) {
  if (data == nullptr) return;
  if (in_kernels_view(data)) {
    g_router->take(data);  // and frees it, outside the lock
  } else {
    g_router->free_on_host(data);
  }
}

c10::DataPtr Router::allocate(std::size_t n) {
  if (tl_depth == 0 || n == 0) return host_->allocate(n);
  c10::DataPtr block = c10::GetAllocator(kType)->allocate(n);
  void* const view = kernels_view(block.get());
  const std::lock_guard lock(mutex_);
  blocks_[view] = std::move(block);
  return {view, view, &release, c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr Router::raw_deleter() const { return &release; }

}  // namespace

void install_router() {
  g_router = new Router(c10::GetCPUAllocator());
  c10::SetCPUAllocator(g_router, std::numeric_limits<std::uint8_t>::max());
}

InKernel::InKernel() {
  TORCH_CHECK(c10::GetCPUAllocator() == g_router,
              "stand-in: another CPU allocator was installed after it; import what installs one before");
  ++tl_depth;
}
InKernel::~InKernel() { --tl_depth; }

c10::DataPtr to_device_block(c10::DataPtr memory, std::size_t bytes) {
  void* const data = memory.get();
  if (data == nullptr) return {nullptr, kDevice};
  if (in_kernels_view(data) && memory.get_deleter() == &release) {
    memory.release_context();
    return g_router->take(data);
  }
  c10::DataPtr block = c10::GetAllocator(kType)->allocate(bytes);
  std::memcpy(kernels_view(block.get()), data, bytes);
  return block;
}

}  // namespace standin
