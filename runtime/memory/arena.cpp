#include "runtime/memory/arena.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "runtime/memory/allocator.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

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
  auto pages = std::make_shared<ArenaPages>(bytes);
  slot_ = register_range(pages->base(), pages->base() + pages->mapped_bytes());
  pages_ = std::move(pages);
  base_ = pages_->base();
  bytes_ = bytes;
  mapped_bytes_ = pages_->mapped_bytes();
}

void Arena::fill(int value) {
  if (base_ == nullptr) return;
  if (pages_) return pages_->fill(value);
  device().fill(base_, value, bytes_);
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
  if (pages_) pages_->part();
  pages_.reset();
  order_.reset();
  block_ = {};
  if (!where_.is_cpu()) device().count_others();
  base_ = nullptr;
  bytes_ = mapped_bytes_ = 0;
  slot_ = -1;
}

}  // namespace stowage::runtime
