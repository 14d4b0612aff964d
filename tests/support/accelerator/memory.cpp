// Device blocks (see memory.h).
#include "memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "mapping.h"
#include "order.h"
#include "settings.h"
#include "streams.h"
#include "torch_versions.h"

namespace standin {
namespace {

constexpr std::size_t kAlignBytes = 512;
constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

using Fence = std::vector<std::pair<c10::StreamId, Ticket>>;

bool passed(const Fence& fence) {
  return std::ranges::all_of(fence, [](const auto& f) { return queue(f.first).done(f.second); });
}

void free_block(void* block);

class Allocator final : public c10::DeviceAllocator {
 public:
  Allocator() { holes_[0] = kSpanBytes; }

  c10::DataPtr allocate(std::size_t n) override {
    if (n == 0) return {nullptr, nullptr, &free_block, kDevice};
    TORCH_CHECK(!forked(), "Cannot re-initialize the stand-in in a forked subprocess");
    const std::size_t bytes = (n + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    std::unique_lock lock(mutex_);
    make_holes();
    while (taken_bytes() + bytes > limit_bytes() || largest_hole() < bytes) {
      if (waiting_.empty()) no_memory(n);
      const Fence fence = waiting_.begin()->second;
      lock.unlock();
      for (const auto& [id, ticket] : fence) queue(id).wait(ticket);
      lock.lock();
      make_holes();
    }
    const std::size_t offset = take_hole(bytes);
    blocks_[offset] = {bytes, n, current_stream(), {}};
    for (auto* s : {&stats_.allocated_bytes, &stats_.active_bytes, &stats_.reserved_bytes}) (*s)[kAll].increase(bytes);
    stats_.requested_bytes[kAll].increase(n);
    for (auto* s : {&stats_.allocation, &stats_.active, &stats_.segment}) (*s)[kAll].increase(1);
    ++stats_.num_device_alloc;
    if (settings().poison) std::memset(kernels_view(device_base() + offset), kPoison, bytes);
    return {device_base() + offset, device_base() + offset, &free_block, kDevice};
  }

  void free(void* address) {
    if (address == nullptr || forked()) return;  // a child's frees are not its parent's
    const std::lock_guard lock(mutex_);
    const std::size_t offset = offset_of(address);
    const auto it = blocks_.find(offset);
    TORCH_INTERNAL_ASSERT(it != blocks_.end(), "stand-in: not a block");
    const Block& block = it->second;
    stats_.allocated_bytes[kAll].decrease(block.bytes);
    stats_.requested_bytes[kAll].decrease(block.asked_bytes);
    stats_.allocation[kAll].decrease(1);
    Fence fence{{block.stream, queue(block.stream).last()}};
    for (const c10::StreamId id : block.used_on) fence.emplace_back(id, queue(id).last());
    if (passed(fence)) {
      make_hole(offset);
    } else {
      waiting_[offset] = std::move(fence);
    }
  }

  void recordStream(const c10::DataPtr& block, c10::Stream stream) override { use(block.get(), stream.id()); }

  void use(const void* address, c10::StreamId id) {
    const std::lock_guard lock(mutex_);
    auto it = blocks_.upper_bound(offset_of(address));
    if (!on_device(address) || it == blocks_.begin()) return;
    Block& block = (--it)->second;
    if (block.stream != id && offset_of(address) - it->first < block.bytes) block.used_on.insert(id);
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    std::memcpy(kernels_view(to), kernels_view(from), n);
  }
  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override {
    const std::lock_guard lock(mutex_);
    make_holes();
    for (const auto& [offset, bytes] : holes_) give_back_pages(offset, bytes);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const std::lock_guard lock(mutex_);
    make_holes();
    return stats_;
  }
  void resetPeakStats(c10::DeviceIndex) override {
    const std::lock_guard lock(mutex_);
    make_holes();
    for (auto* s : all_stats()) (*s)[kAll].reset_peak();
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    const std::lock_guard lock(mutex_);
    for (auto* s : all_stats()) (*s)[kAll].reset_accumulated();
    stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free = 0;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) STANDIN_OVERRIDE_IF_ANY {
    const std::lock_guard lock(mutex_);
    make_holes();
    return {limit_bytes() - std::min(limit_bytes(), taken_bytes()), limit_bytes()};
  }

 private:
  struct Block {
    std::size_t bytes = 0, asked_bytes = 0;
    c10::StreamId stream = 0;
    std::set<c10::StreamId> used_on;
  };

  static std::size_t offset_of(const void* address) {
    return static_cast<std::size_t>(static_cast<const char*>(address) - device_base());
  }
  static std::size_t limit_bytes() { return static_cast<std::size_t>(settings().limit_bytes.load()); }
  [[nodiscard]] std::size_t taken_bytes() const {
    return static_cast<std::size_t>(stats_.reserved_bytes[kAll].current);
  }
  [[nodiscard]] std::size_t largest_hole() const {
    std::size_t largest = 0;
    for (const auto& [offset, bytes] : holes_) largest = std::max(largest, bytes);
    return largest;
  }
  std::vector<c10::CachingAllocator::StatArray*> all_stats() {
    return {&stats_.allocated_bytes, &stats_.active_bytes, &stats_.reserved_bytes, &stats_.requested_bytes,
            &stats_.allocation,      &stats_.active,       &stats_.segment};
  }

  [[noreturn]] void no_memory(std::size_t n) {
    ++stats_.num_ooms;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "standin out of memory. Tried to allocate ", n,
                     " bytes. Device 0 has a total capacity of ", limit_bytes(), " bytes of which ",
                     limit_bytes() - std::min(limit_bytes(), taken_bytes()), " bytes are free.");
    std::abort();  // never reached
  }

  std::size_t take_hole(std::size_t bytes) {
    auto best = holes_.end();
    for (auto it = holes_.begin(); it != holes_.end(); ++it) {
      if (it->second >= bytes && (best == holes_.end() || it->second < best->second)) best = it;
    }
    const auto [offset, size] = *best;
    holes_.erase(best);
    if (size > bytes) holes_[offset + bytes] = size - bytes;
    return offset;
  }

  // Of all blocks that are free and whose streams have passed.
  void make_holes() {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (!passed(it->second)) {
        ++it;
        continue;
      }
      make_hole(it->first);
      it = waiting_.erase(it);
    }
  }
  void make_hole(std::size_t offset) {
    const auto it = blocks_.find(offset);
    std::size_t bytes = it->second.bytes;
    std::vector<c10::StreamId> done(it->second.used_on.begin(), it->second.used_on.end());
    done.push_back(it->second.stream);
    order::forget(device_base() + offset, bytes, done);
    blocks_.erase(it);
    if (settings().poison) std::memset(kernels_view(device_base() + offset), kPoison, bytes);
    for (auto* s : {&stats_.active_bytes, &stats_.reserved_bytes}) (*s)[kAll].decrease(bytes);
    for (auto* s : {&stats_.active, &stats_.segment}) (*s)[kAll].decrease(1);
    ++stats_.num_device_free;
    auto next = holes_.lower_bound(offset);
    if (next != holes_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    holes_[offset] = bytes;
  }

  std::mutex mutex_;
  std::map<std::size_t, std::size_t> holes_;  // offset -> bytes
  std::map<std::size_t, Block> blocks_;       // those that are free and wait, too
  std::map<std::size_t, Fence> waiting_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

Allocator& the_allocator() {
  static auto* const a = new Allocator();
  return *a;
}

void free_block(void* block) { the_allocator().free(block); }

}  // namespace

c10::DeviceAllocator& allocator() { return the_allocator(); }
void used_on(const void* address, c10::StreamId stream) { the_allocator().use(address, stream); }

}  // namespace standin
