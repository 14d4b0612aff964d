#include "runtime/memory/arena.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "runtime/memory/allocator.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Address ranges of the arenas alive, so that a deleter can tell a planned block from one with a header.
struct Range {
  std::atomic<const char*> lo{nullptr};
  std::atomic<const char*> hi{nullptr};
};
constexpr int kMaxArenas = 1024;
std::array<Range, kMaxArenas> g_ranges;
std::atomic<int> g_ranges_used{0};
std::mutex g_ranges_mutex;

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
  throw Error("there are " + std::to_string(kMaxArenas) +
              " arenas, of as many compiled steps, and there can be no more: delete some");
}

void unregister_range(int slot) {
  const std::lock_guard lock(g_ranges_mutex);
  g_ranges[static_cast<std::size_t>(slot)].lo.store(nullptr, std::memory_order_release);
}

}  // namespace

bool in_arena(const void* address) {
  const auto* p = static_cast<const char*>(address);
  const int used = g_ranges_used.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    const char* lo = g_ranges[static_cast<std::size_t>(i)].lo.load(std::memory_order_acquire);
    if (lo != nullptr && p >= lo && p < g_ranges[static_cast<std::size_t>(i)].hi.load(std::memory_order_acquire))
      return true;
  }
  return false;
}

Arena::~Arena() { release(); }

void Arena::reserve(c10::Device where, std::int64_t bytes) {
  if (bytes <= bytes_ && where == where_) return;
  release();
  where_ = where;
  if (bytes == 0) return;
  if (where.is_cpu()) return map(bytes);
  count_bytes(bytes, where);  // which makes room for it
  c10::DataPtr block;
  try {
    block = device_at(where).allocate(bytes);
  } catch (...) {
    uncount_bytes(bytes, where);
    throw;
  }
  uncount_bytes(bytes, where);
  device_at(where).count_others();
  order_ = device_at(where).order();
  auto* const base = static_cast<char*>(block.get());
  slot_ = register_range(base, base + bytes);
  block_ = std::move(block);
  base_ = base;
  bytes_ = mapped_bytes_ = bytes;
}

void Arena::map(std::int64_t bytes) {
  // One huge page more than needed, so that the base can sit on a huge-page boundary.
  const std::size_t usable = (static_cast<std::size_t>(bytes) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  count_bytes(bytes);
  void* mapped = mmap(nullptr, usable + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    uncount_bytes(bytes);
    throw Error("an arena of " + std::to_string(bytes) + " bytes cannot be had: " + std::strerror(errno));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > start) munmap(mapped, aligned - start);
  const std::size_t tail = start + kHugePageBytes - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + usable), tail);
  char* base = reinterpret_cast<char*>(aligned);
  try {
    slot_ = register_range(base, base + usable);
  } catch (...) {
    munmap(base, usable);
    uncount_bytes(bytes);
    throw;
  }
  base_ = base;
  bytes_ = bytes;
  mapped_bytes_ = static_cast<std::int64_t>(usable);
  // A hint: no plan depends on it
  if (usable <= static_cast<std::size_t>(bytes) + kHugePageBytes / 2) madvise(base_, usable, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  // likewise: all of it will be used, so no kernel need wait for pages
  madvise(base_, static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE);
#endif
}

void Arena::fill(int value) {
  if (base_ != nullptr) device().fill(base_, value, bytes_);
}

void Arena::begin_use() {
  if (order_) order_->begin();
}

void Arena::end_use() {
  if (order_) order_->end();
}

void Arena::release() {
  if (base_ == nullptr) return;
  unregister_range(slot_);
  if (where_.is_cpu()) {
    munmap(base_, static_cast<std::size_t>(mapped_bytes_));
    uncount_bytes(bytes_);
  }
  order_.reset();
  block_ = {};
  if (!where_.is_cpu()) device().count_others();
  base_ = nullptr;
  bytes_ = mapped_bytes_ = 0;
  slot_ = -1;
}

}  // namespace stowage::runtime
