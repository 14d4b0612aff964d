#include "runtime/memory/front.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>

#include "stowage/error.h"

namespace stowage::runtime {

std::mutex& FrontBlocks::mutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

std::unordered_map<const void*, FrontBlocks::Block>& FrontBlocks::blocks() {
  static auto* const blocks = new std::unordered_map<const void*, Block>();
  return *blocks;
}

c10::DataPtr FrontBlocks::take(c10::DataPtr block, std::int64_t bytes, bool earlier) {
  void* const data = block.get();
  const c10::Device where = block.device();
  const std::int64_t stream = earlier ? kUnknown : c10::impl::VirtualGuardImpl(where.type()).getStream(where).id();
  const owners::OwnerId owner = earlier ? owners::kNobody : owners::asks(bytes, where);
  {
    const std::lock_guard lock(mutex());
    blocks().insert_or_assign(data, Block{std::move(block), bytes, stream, owner});
  }
  front::allocated(where.type(), static_cast<std::size_t>(bytes), data);
  return {data, data, &release, where};
}

void** FrontBlocks::mark(const void* data) {
  const std::lock_guard lock(mutex());
  const auto it = blocks().find(data);
  return it == blocks().end() ? nullptr : &it->second.mark;  // the table's entries stay where they are
}

owners::OwnerId FrontBlocks::owner(const void* data) {
  const std::lock_guard lock(mutex());
  const auto it = blocks().find(data);
  return it == blocks().end() ? owners::kNobody : it->second.owner;
}

void FrontBlocks::give_to(const void* data, owners::OwnerId owner) {
  const std::lock_guard lock(mutex());
  const auto it = blocks().find(data);
  if (it == blocks().end() || it->second.owner == owner) return;
  owners::dies(it->second.owner, it->second.bytes);
  it->second.owner = owner;
  owners::moves(owner, it->second.bytes);
}

std::int64_t FrontBlocks::stream(const void* data) {
  const std::lock_guard lock(mutex());
  const auto it = blocks().find(data);
  return it == blocks().end() ? kUnknown : it->second.stream;
}

std::unordered_map<std::int64_t, std::int64_t>& FrontBlocks::watched() {
  static auto* const watched = new std::unordered_map<std::int64_t, std::int64_t>();
  return *watched;
}

void FrontBlocks::watch(std::int64_t stream) {
  const std::lock_guard lock(mutex());
  watched().try_emplace(stream, 0);
}

std::int64_t FrontBlocks::freed(std::int64_t stream) {
  const std::lock_guard lock(mutex());
  return watched().at(stream);
}

void FrontBlocks::release(void* data) {
  if (data == nullptr) return;
  c10::Device where = kHost;
  void* mark = nullptr;
  {
    const std::lock_guard lock(mutex());
    const auto it = blocks().find(data);
    if (it != blocks().end()) {
      where = it->second.inner.device();
      mark = it->second.mark;
    }
  }
  if (where.is_cpu()) {  // it lies in an arena
    front::freed(front::armed_for(), data);
    return;
  }
  if (mark != nullptr) {
    Guardian* const guardian = guardian_of(where);
    if (guardian != nullptr && guardian->block_dies(data, mark)) return;
  }
  Block block;  // is freed outside of the lock
  {
    const std::lock_guard lock(mutex());
    const auto it = blocks().find(data);
    block = std::move(it->second);
    blocks().erase(it);
    if (const auto count = watched().find(block.stream); count != watched().end()) ++count->second;
  }
  front::freed(where.type(), data);
  uncount_bytes(block.bytes, where);
  owners::dies(block.owner, block.bytes);
}

// ---- What was there before

namespace {

struct Earlier {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::int64_t> bytes;  // counted
};

Earlier& earlier() {
  static auto* const earlier = new Earlier();
  return *earlier;
}

}  // namespace

c10::DataPtr FrontBlocks::take_earlier(c10::DataPtr block, std::int64_t bytes) {
  const c10::Device where = block.device();
  {
    const std::lock_guard lock(earlier().mutex);
    std::int64_t& counted = earlier().bytes[where.index()];
    const std::int64_t known = std::min(counted, bytes);
    counted -= known;
    uncount_bytes(known - bytes, where);  // no room is made for what is there
  }
  return take(std::move(block), bytes, /*earlier=*/true);
}

void FrontBlocks::count_earlier(c10::Device where, std::int64_t below_bytes) {
  std::int64_t ours = 0;
  {
    const std::lock_guard lock(mutex());
    for (const auto& [data, block] : blocks()) {
      if (block.inner.device() == where) ours += block.bytes;
    }
  }
  const std::lock_guard lock(earlier().mutex);
  std::int64_t& counted = earlier().bytes[where.index()];
  const std::int64_t now = std::max<std::int64_t>(below_bytes - ours, 0);
  uncount_bytes(counted - now, where);
  counted = now;
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
