// The front of CUDA's allocator. PyTorch does not ask c10::GetAllocator(kCUDA) for its blocks, but a pointer of CUDA's
// own; so the front is a CUDAAllocator, which passes on whatever is no block. It is put in both places: code that knows
// no CUDA, such as the executor where a buffer comes back from the host, asks the first. Here is all that CUDA needs
// beyond c10.
//
// Empty unless STOWAGE_CUDA is defined: the installed torch has CUDA, and the headers of CUDA's runtime were found. What
// versions of torch lack is asked of the base class, not of a version number.
#ifdef STOWAGE_CUDA

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/memory/front.h"

namespace stowage::runtime {
namespace {

namespace cuda = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;
using Stats = c10::CachingDeviceAllocator::DeviceStats;
using RejectionObserver = std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>;

class CudaFront final : public cuda::CUDAAllocator {
 public:
  explicit CudaFront(cuda::CUDAAllocator& below) : below_(below) {}

  // ---- Blocks

  c10::DataPtr allocate(std::size_t n) override {
    return FrontBlocks::allocate(c10::Device(c10::DeviceType::CUDA, c10::cuda::current_device()), n,
                                 [&](std::size_t bytes) { return below_.allocate(bytes); });
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &FrontBlocks::release; }
  void raw_delete(void* data) override {
    if (!FrontBlocks::with(data, [](const c10::DataPtr&) {}) && !in_arena(data)) return below_.raw_delete(data);
    FrontBlocks::release(data);
  }
  using cuda::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    const bool ours =
        FrontBlocks::with(block.get(), [&](const c10::DataPtr& inner) { below_.recordStream(inner, stream); });
    if (!ours && !in_arena(block.get())) below_.recordStream(block, stream);
  }

  // ---- What is passed on

  void* raw_alloc(std::size_t n) override { return below_.raw_alloc(n); }
  void* raw_alloc_with_stream(std::size_t n, cudaStream_t s) override { return below_.raw_alloc_with_stream(n, s); }
  void copy_data(void* to, const void* from, std::size_t n) const override { below_.copy_data(to, from, n); }
  void init(int devices) override { below_.init(devices); }
  bool initialized() override { return below_.initialized(); }
  double getMemoryFraction(DeviceIndex d) override { return below_.getMemoryFraction(d); }
  void setMemoryFraction(double fraction, DeviceIndex d) override { below_.setMemoryFraction(fraction, d); }
  std::vector<cuda::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex d) override {
    return below_.getExpandableSegmentSizes(d);
  }
  void enable(bool on) override { below_.enable(on); }
  bool isEnabled() const override { return below_.isEnabled(); }
  void emptyCache(MempoolId_t pool) override { below_.emptyCache(pool); }
  void cacheInfo(DeviceIndex d, std::size_t* largest) override { below_.cacheInfo(d, largest); }
  void* getBaseAllocation(void* data, std::size_t* size) override { return below_.getBaseAllocation(data, size); }
  Stats getDeviceStats(DeviceIndex d) override { return below_.getDeviceStats(d); }
  void resetAccumulatedStats(DeviceIndex d) override { below_.resetAccumulatedStats(d); }
  void resetPeakStats(DeviceIndex d) override { below_.resetPeakStats(d); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex d) override { return below_.getMemoryInfo(d); }
  cuda::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return below_.snapshot(pool, traces); }

  void beginAllocateToPool(DeviceIndex d, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    below_.beginAllocateToPool(d, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex d, MempoolId_t pool) override { below_.endAllocateToPool(d, pool); }
  void releasePool(DeviceIndex d, MempoolId_t pool) override { below_.releasePool(d, pool); }
  int getPoolUseCount(DeviceIndex d, MempoolId_t pool) override { return below_.getPoolUseCount(d, pool); }
  void createOrIncrefPool(DeviceIndex d, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    below_.createOrIncrefPool(d, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex d, MempoolId_t pool, bool use) override { below_.setUseOnOOM(d, pool, use); }
  void setNoSplit(DeviceIndex d, MempoolId_t pool) override { below_.setNoSplit(d, pool); }
  bool checkPoolLiveAllocations(DeviceIndex d, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
    return below_.checkPoolLiveAllocations(d, pool, expected);
  }
  std::shared_ptr<cuda::AllocatorState> getCheckpointState(DeviceIndex d, MempoolId_t pool) override {
    return below_.getCheckpointState(d, pool);
  }
  cuda::CheckpointDelta setCheckpointPoolState(DeviceIndex d, std::shared_ptr<cuda::AllocatorState> state) override {
    return below_.setCheckpointPoolState(d, std::move(state));
  }

  cuda::ShareableHandle shareIpcHandle(void* data) override { return below_.shareIpcHandle(data); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return below_.getIpcDevPtr(std::move(handle)); }
  void enablePeerAccess(DeviceIndex d, DeviceIndex to) override { below_.enablePeerAccess(d, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t n,
                          cudaStream_t stream, bool peer) override {
    return below_.memcpyAsync(to, to_device, from, from_device, n, stream, peer);
  }

  bool isHistoryEnabled() override { return below_.isHistoryEnabled(); }
  void recordHistory(bool on, cuda::CreateContextFn context, std::size_t most, cuda::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    below_.recordHistory(on, context, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& notes) override {
    below_.recordAnnotation(notes);
  }
  void pushCompileContext(std::string& context) override { below_.pushCompileContext(context); }
  void popCompileContext() override { below_.popCompileContext(); }
  void setUserMetadata(const std::string& text) override { below_.setUserMetadata(text); }
  std::string getUserMetadata() override { return below_.getUserMetadata(); }
  void attachOutOfMemoryObserver(cuda::OutOfMemoryObserver observer) override {
    below_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(cuda::AllocatorTraceTracker tracker) override {
    below_.attachAllocatorTraceTracker(std::move(tracker));
  }
  std::string name() override { return below_.name(); }

  // ---- Virtual in some versions only, so without `override`

  void markCaptureBegin(DeviceIndex d) { capture_begins(below_, d); }
  void markCaptureEnd(DeviceIndex d) { capture_ends(below_, d); }
  void attachOomRejectionObserver(RejectionObserver observer) { observe_rejections(below_, std::move(observer)); }
  c10::DataPtr allocateWithAddress(std::size_t n, void* at) { return allocate_at(below_, n, at); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) { return context_of(below_, data); }

  [[nodiscard]] cuda::CUDAAllocator& below() const { return below_; }

 private:
  template <class Allocator>
  static void capture_begins(Allocator& below, DeviceIndex d) {
    if constexpr (requires { below.markCaptureBegin(d); }) below.markCaptureBegin(d);
  }
  template <class Allocator>
  static void capture_ends(Allocator& below, DeviceIndex d) {
    if constexpr (requires { below.markCaptureEnd(d); }) below.markCaptureEnd(d);
  }
  template <class Allocator>
  static void observe_rejections(Allocator& below, RejectionObserver observer) {
    if constexpr (requires { below.attachOomRejectionObserver(observer); })
      below.attachOomRejectionObserver(std::move(observer));
  }
  template <class Allocator>
  static c10::DataPtr allocate_at(Allocator& below, std::size_t n, void* at) {
    if constexpr (requires { below.allocateWithAddress(n, at); }) return below.allocateWithAddress(n, at);
    return {};
  }
  template <class Allocator>
  static std::shared_ptr<c10::GatheredContext> context_of(Allocator& below, const void* data) {
    if constexpr (requires { below.getContextForPointer(data); }) return below.getContextForPointer(data);
    return nullptr;
  }

  cuda::CUDAAllocator& below_;
};

constexpr std::uint8_t kBeforeCudas = 1;  // its own priority is 0

c10::DeviceAllocator& put_cuda_front(c10::DeviceType /*type*/) {
  static CudaFront* front = nullptr;  // put_front()'s lock
  if (front == nullptr) {
    c10::cuda::device_count_ensure_non_zero();
    front = new CudaFront(*cuda::get());
    cuda::allocator.store(front);
    c10::SetAllocator(c10::DeviceType::CUDA, front, kBeforeCudas);
  }
  return front->below();
}

const bool kCudaFrontKnown = know_front(c10::DeviceType::CUDA, &put_cuda_front);

}  // namespace
}  // namespace stowage::runtime

#endif
