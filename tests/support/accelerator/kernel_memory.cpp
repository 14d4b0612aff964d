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
thread_local Capture* tl_noted_by = nullptr;
thread_local std::vector<Piece>* tl_taken = nullptr;
thread_local const std::vector<Piece>* tl_again = nullptr;
thread_local std::size_t tl_next = 0;  // of these

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
    if (tl_again != nullptr) return;  // a library gives back what it got of a graph's memory
    router().take(data);              // and frees it, outside the lock
  } else {
    router().free_on_host(data);
  }
}

c10::DataPtr Router::allocate(std::size_t n) {
  if (tl_depth == 0 || n == 0) return host_.load()->allocate(n);
  if (tl_again != nullptr) {
    TORCH_CHECK(tl_next < tl_again->size() && (*tl_again)[tl_next].bytes == n,
                "stand-in: a kernel of a graph asks for ", n, " bytes, for which it has not asked before");
    void* const at = (*tl_again)[tl_next++].at;
    return {at, at, &c10::detail::deleteNothing, c10::Device(c10::kCPU)};
  }
  c10::DataPtr block = c10::GetAllocator(kType)->allocate(n);
  void* const view = kernels_view(block.get());
  if (tl_noted_by != nullptr) {
    tl_noted_by->keep({view, n});
    tl_taken->push_back({view, n});
  }
  const std::lock_guard lock(mutex_);
  blocks_[view] = std::move(block);
  return {view, view, &release, c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr Router::raw_deleter() const { return &release; }

}  // namespace

InKernel::InKernel(Capture* capture, std::vector<Piece>* taken) {
  router().kernel_begins();
  ++tl_depth;
  tl_noted_by = capture;
  tl_taken = taken;
}
InKernel::InKernel(const std::vector<Piece>& again) {
  router().kernel_begins();
  ++tl_depth;
  tl_again = &again;
  tl_next = 0;
}
InKernel::~InKernel() {
  tl_noted_by = nullptr;
  tl_again = nullptr;
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
