#include "runtime/memory/arena.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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

// What arenas have left behind.
struct Abandoned {
  int slot = -1;
  std::size_t blocks = 0;  // that are held
  c10::DataPtr block;
  std::shared_ptr<ArenaPages> pages;
};
std::vector<Abandoned>& abandoned() {
  static auto* const all = new std::vector<Abandoned>();  // blocks may outlive all else
  return *all;
}
std::atomic<bool> g_any_abandoned{false};

// Called with the mutex.
bool holds(const Abandoned& each, const char* p) {
  const Range& range = g_ranges[static_cast<std::size_t>(each.slot)];
  return p >= range.lo.load() && p < range.hi.load();
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

bool dies_in_arena(const void* address) {
  if (!in_arena(address)) return false;
  if (!g_any_abandoned.load(std::memory_order_acquire)) return true;
  Abandoned gone;
  {
    const std::lock_guard lock(g_ranges_mutex);
    std::vector<Abandoned>& all = abandoned();
    const auto it = std::find_if(all.begin(), all.end(),
                                 [&](const Abandoned& each) { return holds(each, static_cast<const char*>(address)); });
    if (it == all.end() || --it->blocks > 0) return true;
    gone = std::move(*it);
    all.erase(it);
    g_any_abandoned.store(!all.empty(), std::memory_order_release);
  }
  unregister_range(gone.slot);
  if (gone.pages) gone.pages->part();
  return true;
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

void Arena::abandon(std::size_t blocks) {
  if (base_ == nullptr || blocks == 0) return;
  {
    const std::lock_guard lock(g_ranges_mutex);
    abandoned().push_back({slot_, blocks, std::move(block_), std::move(pages_)});
    g_any_abandoned.store(true, std::memory_order_release);
  }
  order_.reset();
  base_ = nullptr;
  bytes_ = mapped_bytes_ = 0;
  slot_ = -1;
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
