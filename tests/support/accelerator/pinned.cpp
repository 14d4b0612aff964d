// Blocks of pinned host memory (see pinned.h).
#include "pinned.h"

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "order.h"
#include "settings.h"
#include "streams.h"

namespace standin {
namespace {

constexpr std::align_val_t kAlign{4096};

struct Block {
  std::size_t bytes = 0;
  int uses = 0;
  bool freed = false;
};

std::mutex g_mutex;
std::map<const char*, Block>& blocks() {
  static auto* const all = new std::map<const char*, Block>();
  return *all;
}
using Place = std::map<const char*, Block>::iterator;

// The block that holds the address, or end(). The lock is held.
Place find(const void* address) {
  const char* const at = static_cast<const char*>(address);
  auto it = blocks().upper_bound(at);
  if (it == blocks().begin()) return blocks().end();
  --it;
  return at < it->first + it->second.bytes ? it : blocks().end();
}

void give_back(Place it) {
  counters().pinned_bytes.fetch_sub(static_cast<std::int64_t>(std::bit_ceil(it->second.bytes)));
  char* const data = const_cast<char*>(it->first);
  if (settings().poison) std::memset(data, kPoison, it->second.bytes);
  order::forget(data, it->second.bytes, {});
  blocks().erase(it);
  ::operator delete(data, kAlign);
}

void free_pinned(void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(g_mutex);
  const auto it = find(data);
  it->second.freed = true;
  if (it->second.uses == 0) give_back(it);
}

class Pinned final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    if (n == 0) return {nullptr, nullptr, &free_pinned, c10::Device(c10::kCPU)};
    void* const data = ::operator new(n, kAlign);
    const std::lock_guard lock(g_mutex);
    blocks()[static_cast<const char*>(data)] = {n, 0, false};
    counters().pinned_bytes.fetch_add(static_cast<std::int64_t>(std::bit_ceil(n)));
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }

  // For copies that go past the stand-in: the block is not freed before what the stream has so far is done.
  bool record_event(void* address, void*, c10::Stream stream) override {
    if (!begin_use(address)) return false;
    queue(stream.id()).push([address] { end_use(address); });
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

at::HostAllocator& pinned_allocator() {
  static auto* const a = new Pinned();
  return *a;
}

bool is_pinned(const void* address) {
  const std::lock_guard lock(g_mutex);
  return find(address) != blocks().end();
}

bool begin_use(const void* address) {
  const std::lock_guard lock(g_mutex);
  const auto it = find(address);
  if (it == blocks().end() || it->second.freed) return false;
  ++it->second.uses;
  return true;
}

void end_use(const void* address) {
  const std::lock_guard lock(g_mutex);
  const auto it = find(address);
  if (--it->second.uses == 0 && it->second.freed) give_back(it);
}

}  // namespace standin
