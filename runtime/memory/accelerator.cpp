#include "runtime/memory/accelerator.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/memory/accelerator_link.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/arena.h"
#include "runtime/memory/plainly.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

// ---- The front

class Front final : public c10::DeviceAllocator {
 public:
  Front(c10::DeviceType type, c10::DeviceAllocator& below) : type_(type), below_(below) {}

  c10::DataPtr allocate(std::size_t n) override {
    if (n == 0) return below_.allocate(0);
    const c10::Device here = c10::impl::VirtualGuardImpl(type_).getDevice();
    if (void* const planned = front::from_plan(type_, n)) {
      front::allocated(type_, n, planned);
      return {planned, planned, &release, here};
    }
    c10::DataPtr block = below_.allocate(n);
    void* const data = block.get();
    const c10::Device where = block.device();
    {
      const std::lock_guard lock(mutex_);
      blocks_.insert_or_assign(data, std::move(block));
    }
    front::allocated(type_, n, data);
    return {data, data, &release, where};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { below_.copy_data(to, from, n); }

  bool initialized() override { return below_.initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { below_.emptyCache(pool); }
  void recordStream(const c10::DataPtr& block, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto it = blocks_.find(block.get());
    if (it != blocks_.end()) return below_.recordStream(it->second, stream);
    if (!in_arena(block.get())) below_.recordStream(block, stream);  // older than the front; a step with one is refused
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex i) override {
    return below_.getDeviceStats(i);
  }
  void resetAccumulatedStats(c10::DeviceIndex i) override { below_.resetAccumulatedStats(i); }
  void resetPeakStats(c10::DeviceIndex i) override { below_.resetPeakStats(i); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex i) override { return below_.getMemoryInfo(i); }

  [[nodiscard]] c10::DeviceAllocator& below() const { return below_; }
  [[nodiscard]] c10::DeviceType type() const { return type_; }

  static std::atomic<Front*> the;  // a process has one accelerator

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    Front& front = *the.load();
    if (front::freed(front.type_, data)) return;
    c10::DataPtr block;  // is freed outside of the lock
    const std::lock_guard lock(front.mutex_);
    const auto it = front.blocks_.find(data);
    if (it == front.blocks_.end()) return;
    block = std::move(it->second);
    front.blocks_.erase(it);
  }

  c10::DeviceType type_;
  c10::DeviceAllocator& below_;
  std::mutex mutex_;
  std::unordered_map<const void*, c10::DataPtr> blocks_;
};

std::atomic<Front*> Front::the{nullptr};

constexpr std::uint8_t kBeforeTheDevices = 1;  // its own priority is 0

std::string why_no_front(c10::DeviceType type) {
  return "PyTorch does not ask stowage for memory on " + c10::DeviceTypeName(type, /*lower_case=*/true) +
         ", so nothing can be planned there: ";
}

// ---- Streams

// Steps that use one arena, each on the stream that is current then.
class StreamOrder final : public Device::Order {
 public:
  explicit StreamOrder(c10::Device where) : guard_(where.type()), where_(where), ended_(where.type()) {}

  void begin() override {
    const c10::Stream now = guard_.getStream(where_);
    if (last_ && *last_ != now) ended_.block(now);
  }
  void end() override {
    last_ = guard_.getStream(where_);
    ended_.record(*last_);
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Device where_;
  c10::Event ended_;
  std::optional<c10::Stream> last_;
};

class Accelerator final : public Device {
 public:
  explicit Accelerator(c10::Device where) : where_(where), guard_(where.type()) {}

  void install() override {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const c10::DeviceType type = where_.type();
    Front* front = Front::the.load();
    if (front == nullptr) {
      auto* const below = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
      if (below == nullptr) throw Error(why_no_front(type) + "its allocator is none of a kind that one can lie before");
      front = new Front(type, *below);
      Front::the.store(front);
      front::know_deleters(front->raw_deleter(), below->raw_deleter());
    }
    if (front->type() == type && c10::GetAllocator(type) == &front->below())
      c10::SetAllocator(type, front, kBeforeTheDevices);
    const bool there = front->type() == type && c10::GetAllocator(type) == front &&
                       at::empty({1}, at::TensorOptions(where_).dtype(at::kByte)).storage().data_ptr().get_deleter() ==
                           front->raw_deleter();
    if (!there && front->type() == type && c10::GetAllocator(type) == front)
      c10::SetAllocator(type, &front->below(), kBeforeTheDevices);
    if (!there)
      throw Error(why_no_front(type) +
                  "it takes its blocks from an allocator of its own, or another library has put one "
                  "in the place since");
  }

  c10::DataPtr allocate(std::int64_t bytes) override {
    return Front::the.load()->below().allocate(static_cast<std::size_t>(bytes));
  }

  void fill(void* at, int value, std::int64_t bytes) override {
    if (bytes == 0) return;
    const Plainly plainly;
    on_device(at, bytes).fill_(value & 0xFF);
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes == 0) return;
    const Plainly plainly;
    on_device(to, bytes).copy_(on_device(from, bytes));
  }
  void to_host(void* to, const void* from, std::int64_t bytes) override { to_host(to, from, bytes, false); }
  void from_host(void* to, const void* from, std::int64_t bytes) override { from_host(to, from, bytes, false); }

  c10::DataPtr host_block(std::int64_t bytes) override {
    return at::getHostAllocator(where_.type())->allocate(static_cast<std::size_t>(bytes));
  }
  void keep(void* block, const void* from, std::int64_t bytes) override { to_host(block, from, bytes, true); }
  void put_back(void* to, const void* block, std::int64_t bytes) override { from_host(to, block, bytes, true); }

  void wait() override { guard_.synchronizeDevice(where_.index()); }
  std::unique_ptr<Order> order() override { return std::make_unique<StreamOrder>(where_); }

  std::shared_ptr<HostStore> host_store(std::int64_t limit_bytes) override { return pinned_store(where_, limit_bytes); }
  std::unique_ptr<Link> link(std::shared_ptr<HostStore> store) override {
    return stream_link(where_, std::move(store));
  }

  [[nodiscard]] std::int64_t stream() const override { return guard_.getStream(where_).id(); }

  // What CUDA's allocator aligns to, and others do no better; so kernels that look at addresses see the same.
  [[nodiscard]] std::int64_t align_bytes() const override { return 512; }

 private:
  [[nodiscard]] at::Tensor on_device(const void* at, std::int64_t bytes) const {
    return byte_tensor(at, bytes, where_);
  }
  static at::Tensor on_host(const void* at, std::int64_t bytes) {
    return byte_tensor(at, bytes, c10::Device(c10::DeviceType::CPU));
  }
  void to_host(void* to, const void* from, std::int64_t bytes, bool host_goes_on) {
    if (bytes == 0) return;
    const Plainly plainly;
    on_host(to, bytes).copy_(on_device(from, bytes), host_goes_on);
  }
  void from_host(void* to, const void* from, std::int64_t bytes, bool host_goes_on) {
    if (bytes == 0) return;
    const Plainly plainly;
    on_device(to, bytes).copy_(on_host(from, bytes), host_goes_on);
  }

  c10::Device where_;
  c10::impl::VirtualGuardImpl guard_;
};

}  // namespace

Device& accelerator(c10::Device where) {
  static std::mutex mutex;
  static auto& known = *new std::map<c10::DeviceIndex, std::unique_ptr<Accelerator>>();
  const std::lock_guard lock(mutex);
  if (!at::accelerator::isAccelerator(where.type())) throw Error("no steps are planned on device " + where.str());
  std::unique_ptr<Accelerator>& device = known[where.index()];
  if (!device) device = std::make_unique<Accelerator>(where);
  return *device;
}

}  // namespace stowage::runtime
