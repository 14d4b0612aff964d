#include "runtime/memory/front.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

#include "stowage/error.h"

namespace stowage::runtime {

std::mutex& FrontBlocks::mutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

std::unordered_map<const void*, c10::DataPtr>& FrontBlocks::blocks() {
  static auto* const blocks = new std::unordered_map<const void*, c10::DataPtr>();
  return *blocks;
}

void FrontBlocks::release(void* data) {
  if (data == nullptr) return;
  c10::DataPtr block;  // is freed outside of the lock
  c10::DeviceType type = c10::DeviceType::CPU;
  {
    const std::lock_guard lock(mutex());
    const auto it = blocks().find(data);
    if (it != blocks().end()) {
      block = std::move(it->second);
      blocks().erase(it);
      type = block.device().type();
    }
  }
  front::freed(block ? type : front::armed_for(), data);  // else it lies in an arena
}

namespace {

class Front final : public c10::DeviceAllocator {
 public:
  Front(c10::DeviceType type, c10::DeviceAllocator& below) : guard_(type), below_(below) {}

  c10::DataPtr allocate(std::size_t n) override {
    return FrontBlocks::allocate(guard_.getDevice(), n, [&](std::size_t bytes) { return below_.allocate(bytes); });
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &FrontBlocks::release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { below_.copy_data(to, from, n); }

  bool initialized() override { return below_.initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { below_.emptyCache(pool); }
  void recordStream(const c10::DataPtr& block, c10::Stream stream) override {
    const bool ours =
        FrontBlocks::with(block.get(), [&](const c10::DataPtr& inner) { below_.recordStream(inner, stream); });
    if (!ours && !in_arena(block.get())) below_.recordStream(block, stream);  // older than the front
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex i) override {
    return below_.getDeviceStats(i);
  }
  void resetAccumulatedStats(c10::DeviceIndex i) override { below_.resetAccumulatedStats(i); }
  void resetPeakStats(c10::DeviceIndex i) override { below_.resetPeakStats(i); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex i) override { return below_.getMemoryInfo(i); }

  [[nodiscard]] c10::DeviceAllocator& below() const { return below_; }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::DeviceAllocator& below_;
};

constexpr std::uint8_t kBeforeTheDevices = 1;  // its own priority is 0

c10::DeviceAllocator& put_by_priority(c10::DeviceType type) {
  static auto& fronts = *new std::map<c10::DeviceType, Front*>();  // put_front()'s lock
  Front*& front = fronts[type];
  if (front == nullptr) {
    auto* const below = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
    if (below == nullptr) throw Error("its allocator is none of a kind that another can lie before");
    front = new Front(type, *below);
    c10::SetAllocator(type, front, kBeforeTheDevices);
  }
  return front->below();
}

std::map<c10::DeviceType, PutFront>& other_ways() {
  static auto* const ways = new std::map<c10::DeviceType, PutFront>();
  return *ways;
}

}  // namespace

bool know_front(c10::DeviceType type, PutFront put) { return other_ways().emplace(type, put).second; }

c10::DeviceAllocator& put_front(c10::DeviceType type) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto way = other_ways().find(type);
  c10::DeviceAllocator& below = way == other_ways().end() ? put_by_priority(type) : way->second(type);
  front::know_deleters(&FrontBlocks::release, below.raw_deleter());
  return below;
}

}  // namespace stowage::runtime
