#include "runtime/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>

namespace stowage::runtime {
namespace {

constexpr std::size_t kHeaderBytes = 64;  // keeps the alignment that c10 promises
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

struct Header {
  std::int64_t bytes;
  void* mark;
};

std::atomic<std::int64_t> g_live{0};
std::atomic<std::int64_t> g_peak{0};
std::atomic<std::int64_t> g_limit{std::numeric_limits<std::int64_t>::max()};
std::atomic<Guardian*> g_guardian{nullptr};
c10::Allocator* g_previous = nullptr;

thread_local std::vector<AllocationEvent>* tl_events = nullptr;
thread_local AllocationScript* tl_script = nullptr;
thread_local LiveBlocks* tl_live_blocks = nullptr;

// Adds to the live bytes, never past the limit: room is made before.
void count(std::int64_t bytes) {
  std::int64_t live = g_live.load(std::memory_order_relaxed);
  for (;;) {
    if (bytes > g_limit.load(std::memory_order_relaxed) - live) {
      if (Guardian* guardian = g_guardian.load()) guardian->make_room(bytes);
      live = g_live.load(std::memory_order_relaxed);
    } else if (g_live.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed)) {
      break;
    }
  }
  raise_peak(live + bytes);
}

// Address ranges of the arenas alive, so that a deleter can tell a planned block from one with a header.
struct Range {
  std::atomic<const char*> lo{nullptr};
  std::atomic<const char*> hi{nullptr};
};
constexpr int kMaxArenas = 1024;
std::array<Range, kMaxArenas> g_ranges;
std::atomic<int> g_ranges_used{0};
std::mutex g_ranges_mutex;

bool in_arena(const void* address) {
  const auto* p = static_cast<const char*>(address);
  const int used = g_ranges_used.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    const char* lo = g_ranges[static_cast<std::size_t>(i)].lo.load(std::memory_order_acquire);
    if (lo != nullptr && p >= lo && p < g_ranges[static_cast<std::size_t>(i)].hi.load(std::memory_order_acquire)) return true;
  }
  return false;
}

int register_range(const char* lo, const char* hi) {
  const std::lock_guard lock(g_ranges_mutex);
  for (int i = 0; i < kMaxArenas; ++i) {
    Range& range = g_ranges[static_cast<std::size_t>(i)];
    if (range.lo.load() != nullptr) continue;
    range.hi.store(hi, std::memory_order_release);
    range.lo.store(lo, std::memory_order_release);
    if (i >= g_ranges_used.load()) g_ranges_used.store(i + 1, std::memory_order_release);
    return i;
  }
  throw std::bad_alloc();
}

void release_block(void* data) {
  if (data == nullptr) return;
  if (tl_events != nullptr) tl_events->push_back({true, 0, data});
  if (tl_live_blocks != nullptr) tl_live_blocks->freed(data);
  if (tl_script != nullptr && tl_script->give_back(data)) return;
  if (in_arena(data)) return;  // outlived its step; the executor has reported it
  char* block = static_cast<char*>(data) - kHeaderBytes;
  const auto* header = reinterpret_cast<const Header*>(block);
  if (header->mark != nullptr) {
    Guardian* guardian = g_guardian.load();
    if (guardian != nullptr && guardian->block_dies(data, header->mark)) return;
  }
  g_live.fetch_sub(header->bytes, std::memory_order_relaxed);
  g_previous->raw_deallocate(block);
}

class PlanningAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    void* data = n == 0 ? nullptr : take(n);
    return {data, data, &release_block, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }

 private:
  static char* raw_block(std::size_t n) {
    try {
      return static_cast<char*>(g_previous->raw_allocate(n + kHeaderBytes));
    } catch (...) {
      g_live.fetch_sub(static_cast<std::int64_t>(n), std::memory_order_relaxed);
      throw;
    }
  }

  static void* take(std::size_t n) {
    void* data = tl_script != nullptr ? tl_script->take(n) : nullptr;
    if (data == nullptr) {
      count(static_cast<std::int64_t>(n));
      auto* block = raw_block(n);
      *reinterpret_cast<Header*>(block) = {static_cast<std::int64_t>(n), nullptr};
      data = block + kHeaderBytes;
    }
    if (tl_events != nullptr) tl_events->push_back({false, static_cast<std::int64_t>(n), data});
    if (tl_live_blocks != nullptr) tl_live_blocks->allocated(data);
    return data;
  }
};

PlanningAllocator g_allocator;

}  // namespace

void install_allocator() {
  if (g_previous != nullptr) return;
  g_previous = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&g_allocator, /*priority=*/1);
}

BlockOrigin block_origin(void* data, void (*deleter)(void*)) {
  if (deleter == &release_block || data == nullptr) return BlockOrigin::kOurs;
  return deleter == g_previous->raw_deleter() ? BlockOrigin::kEarlier : BlockOrigin::kForeign;
}

void set_guardian(Guardian* guardian, std::int64_t limit_bytes) {
  g_guardian.store(guardian);
  set_limit(guardian != nullptr ? limit_bytes : std::numeric_limits<std::int64_t>::max());
}

void set_limit(std::int64_t limit_bytes) { g_limit.store(limit_bytes); }

void** block_mark(void* data, void (*deleter)(void*)) {
  if (deleter != &release_block || data == nullptr || in_arena(data)) return nullptr;
  return &reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes)->mark;
}

std::int64_t live_bytes() { return g_live.load(); }
std::int64_t peak_bytes() { return g_peak.load(); }
void reset_peak() { g_peak.store(g_live.load()); }

void raise_peak(std::int64_t bytes) {
  std::int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (bytes > peak && !g_peak.compare_exchange_weak(peak, bytes, std::memory_order_relaxed)) {
  }
}

// ---- LiveBlocks

void LiveBlocks::allocated(const void* data) {
  blocks_[data] = {static_cast<std::int64_t>(alive_.size()), data};
  alive_.push_back(true);
}

void LiveBlocks::freed(const void* data) {
  const auto it = blocks_.find(data);
  if (it == blocks_.end()) return;
  forget(it->second.number);
  blocks_.erase(it);
}

void LiveBlocks::leaves(const void* data, const void* storage) {
  away_[storage] = at(data);
  blocks_.erase(data);
}

void LiveBlocks::returns(const void* storage, const void* data) {
  const auto it = away_.find(storage);
  if (it == away_.end()) return;
  freed(data);  // the new block has a number of its own
  blocks_[data] = it->second;
  away_.erase(it);
}

void LiveBlocks::dies_away(const void* storage) {
  const auto it = away_.find(storage);
  if (it == away_.end()) return;
  forget(it->second.number);
  away_.erase(it);
}

void LiveBlocks::forget(std::int64_t number) {
  if (number != kOlder) alive_[static_cast<std::size_t>(number)] = false;
}

void content_leaves(const void* data, const void* storage) {
  if (tl_live_blocks != nullptr) tl_live_blocks->leaves(data, storage);
}

void content_returns(const void* storage, const void* data) {
  if (tl_live_blocks != nullptr) tl_live_blocks->returns(storage, data);
}

void content_dies_away(const void* storage) {
  if (tl_live_blocks != nullptr) tl_live_blocks->dies_away(storage);
}

// ---- Arena

Arena::~Arena() { release(); }

void Arena::reserve(std::int64_t bytes) {
  if (bytes <= bytes_) return;
  release();
  count(bytes);
  // One huge page more than needed, so that the base can sit on a huge-page boundary.
  const std::size_t usable = (static_cast<std::size_t>(bytes) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* mapped = mmap(nullptr, usable + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    g_live.fetch_sub(bytes);
    throw std::bad_alloc();
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > start) munmap(mapped, aligned - start);
  const std::size_t tail = start + kHugePageBytes - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + usable), tail);
  base_ = reinterpret_cast<char*>(aligned);
  bytes_ = bytes;
  mapped_bytes_ = static_cast<std::int64_t>(usable);
  madvise(base_, usable, MADV_HUGEPAGE);  // a hint: the plan does not depend on it
#ifdef MADV_POPULATE_WRITE
  madvise(base_, usable, MADV_POPULATE_WRITE);  // likewise: all of it will be used, so no kernel need wait for pages
#endif
  slot_ = register_range(base_, base_ + usable);
}

void Arena::fill(int value) {
  if (base_ != nullptr) std::memset(base_, value, static_cast<std::size_t>(bytes_));
}

void Arena::release() {
  if (base_ == nullptr) return;
  {
    const std::lock_guard lock(g_ranges_mutex);
    g_ranges[static_cast<std::size_t>(slot_)].lo.store(nullptr, std::memory_order_release);
  }
  munmap(base_, static_cast<std::size_t>(mapped_bytes_));
  g_live.fetch_sub(bytes_);
  base_ = nullptr;
  bytes_ = mapped_bytes_ = 0;
  slot_ = -1;
}

// ---- AllocationScript

void AllocationScript::begin_op(const PlannedAllocation* first, std::size_t count) {
  next_ = first;
  end_ = first + count;
}

void AllocationScript::end_op() {
  skipped_ += end_ - next_;
  next_ = end_ = nullptr;
}

void* AllocationScript::take(std::size_t n) {
  const auto bytes = static_cast<std::int64_t>(n);
  const auto* entry = std::find_if(next_, end_, [&](const PlannedAllocation& e) { return e.bytes == bytes; });
  if (entry == end_) {
    ++misses_;
    return nullptr;
  }
  skipped_ += entry - next_;
  next_ = entry + 1;
  if (entry->offset == PlannedAllocation::kUnplanned) {
    ++misses_;
    return nullptr;
  }
  char* address = arena_.base() + entry->offset;
  const std::int64_t padded = (bytes + align_ - 1) / align_ * align_;
  if (entry->takes_over && live_.contains(address)) {
    heirs_[address] = padded;
  } else {
    add_live(address, padded);
  }
  return address;
}

void AllocationScript::add_live(const void* address, std::int64_t padded_bytes) {
  live_.emplace(address, padded_bytes);
  live_bytes_ += padded_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

bool AllocationScript::give_back(const void* address) {
  const auto it = live_.find(address);
  if (it == live_.end()) return false;
  live_bytes_ -= it->second;
  live_.erase(it);
  if (const auto heir = heirs_.find(address); heir != heirs_.end()) {
    add_live(address, heir->second);
    heirs_.erase(heir);
  }
  return true;
}

void AllocationScript::reset_counters() {
  misses_ = skipped_ = 0;
  live_bytes_ = peak_bytes_ = 0;
  live_.clear();
  heirs_.clear();
  next_ = end_ = nullptr;
}

// ---- Guards

WatchAllocations::WatchAllocations(std::vector<AllocationEvent>& events) : previous_(tl_events) { tl_events = &events; }
WatchAllocations::~WatchAllocations() { tl_events = previous_; }
PauseWatching::PauseWatching() : events_(tl_events) { tl_events = nullptr; }
PauseWatching::~PauseWatching() { tl_events = events_; }
PauseWatching::Resume::Resume(const PauseWatching& pause) { tl_events = pause.events_; }
PauseWatching::Resume::~Resume() { tl_events = nullptr; }
LiveBlocks::LiveBlocks() : previous_(tl_live_blocks) { tl_live_blocks = this; }
LiveBlocks::~LiveBlocks() { tl_live_blocks = previous_; }
ArmScript::ArmScript(AllocationScript& script) : previous_(tl_script) { tl_script = &script; }
ArmScript::~ArmScript() { tl_script = previous_; }

}  // namespace stowage::runtime
