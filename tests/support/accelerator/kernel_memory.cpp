// The router of kernels' memory (see kernel_memory.h).
#include "kernel_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
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
  void free_on_host(void* data) { host_.load()->raw_deleter()(data); }

  void kernel_begins() {
    const std::lock_guard lock(mutex_);
    if (kernels_++ > 0) return;
    host_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this, kPriority);
  }
  void kernel_ends() {
    const std::lock_guard lock(mutex_);
    if (--kernels_ == 0) c10::SetCPUAllocator(host_, kPriority);
  }

 private:
  static constexpr auto kPriority = std::numeric_limits<std::uint8_t>::max();  // else it may be refused

  std::atomic<c10::Allocator*> host_{c10::GetCPUAllocator()};
  std::mutex mutex_;
  int kernels_ = 0;                                 // under way, on all threads
  std::unordered_map<void*, c10::DataPtr> blocks_;  // by address in the kernels' view
};

Router& router() {
  static auto* const r = new Router();
  return *r;
}

void release(void* data) {
  if (data == nullptr) return;
  if (in_kernels_view(data)) {
    router().take(data);  // and frees it, outside the lock
  } else {
    router().free_on_host(data);
  }
}

c10::DataPtr Router::allocate(std::size_t n) {
  if (tl_depth == 0 || n == 0) return host_.load()->allocate(n);
  c10::DataPtr block = c10::GetAllocator(kType)->allocate(n);
  void* const view = kernels_view(block.get());
  const std::lock_guard lock(mutex_);
  blocks_[view] = std::move(block);
  return {view, view, &release, c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr Router::raw_deleter() const { return &release; }

}  // namespace

InKernel::InKernel() {
  router().kernel_begins();
  ++tl_depth;
}
InKernel::~InKernel() {
  --tl_depth;
  router().kernel_ends();
}

c10::DataPtr to_device_block(c10::DataPtr memory, std::size_t bytes) {
  void* const data = memory.get();
  if (data == nullptr) return {nullptr, kDevice};
  if (in_kernels_view(data) && memory.get_deleter() == &release) {
    memory.release_context();
    return router().take(data);
  }
  c10::DataPtr block = c10::GetAllocator(kType)->allocate(bytes);
  std::memcpy(kernels_view(block.get()), data, bytes);
  return block;
}

}  // namespace standin
