#include "runtime/memory/allocator.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "runtime/memory/allocation_script.h"
#include "runtime/memory/arena.h"
#include "runtime/memory/front.h"
#include "runtime/memory/owners.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

constexpr std::size_t kHeaderBytes = 64;  // keeps the alignment that c10 promises

struct Header {
  std::int64_t bytes;
  void* mark;
  owners::OwnerId owner;
};

struct Account {
  std::atomic<std::int64_t> live{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> limit{std::numeric_limits<std::int64_t>::max()};
  std::atomic<Guardian*> guardian{nullptr};
};
Account g_host;
std::array<Account, 64> g_devices;  // by index, of the one kind of accelerator that a process has

Account& account_of(c10::Device where) {
  if (where.is_cpu()) return g_host;
  const auto index = static_cast<std::size_t>(std::max<int>(where.index(), 0));
  return g_devices[std::min(index, g_devices.size() - 1)];
}

void raise(std::atomic<std::int64_t>& peak, std::int64_t bytes) {
  std::int64_t now = peak.load(std::memory_order_relaxed);
  while (bytes > now && !peak.compare_exchange_weak(now, bytes, std::memory_order_relaxed)) {
  }
}

c10::Allocator* g_previous = nullptr;

thread_local std::vector<AllocationEvent>* tl_events = nullptr;
thread_local c10::DeviceType tl_events_of = c10::DeviceType::CPU;
thread_local AllocationScript* tl_script = nullptr;
thread_local LiveBlocks* tl_live_blocks = nullptr;

using Deleter = void (*)(void*);
std::atomic<Deleter> g_accelerators_deleter{nullptr};
std::atomic<Deleter> g_deleter_below_accelerators{nullptr};

void release_block(void* data) {
  if (data == nullptr || front::freed(c10::DeviceType::CPU, data)) return;
  char* block = static_cast<char*>(data) - kHeaderBytes;
  const auto* header = reinterpret_cast<const Header*>(block);
  if (header->mark != nullptr) {
    Guardian* guardian = g_host.guardian.load();
    if (guardian != nullptr && guardian->block_dies(data, header->mark)) return;
  }
  uncount_bytes(header->bytes);
  owners::dies(header->owner, header->bytes);
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
      uncount_bytes(static_cast<std::int64_t>(n));
      throw;
    }
  }

  static void* take(std::size_t n) {
    void* data = front::from_plan(c10::DeviceType::CPU, n);
    if (data == nullptr) {
      count_bytes(static_cast<std::int64_t>(n));
      auto* block = raw_block(n);
      *reinterpret_cast<Header*>(block) = {static_cast<std::int64_t>(n), nullptr,
                                           owners::asks(static_cast<std::int64_t>(n), kHost)};
      data = block + kHeaderBytes;
    }
    front::allocated(c10::DeviceType::CPU, n, data);
    return data;
  }
};

// Null where it is no block of this allocator's.
Header* header_of(void* data, void (*deleter)(void*)) {
  if (deleter != &release_block || data == nullptr || in_arena(data)) return nullptr;
  return reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes);
}

PlanningAllocator g_allocator;

constexpr std::uint8_t kPriority = 1;  // c10's own is 0

// raw_allocate() and raw_deallocate() work: its blocks are bare addresses.
bool can_lie_below(c10::Allocator& allocator) {
  if (allocator.raw_deleter() == nullptr) return false;
  const c10::DataPtr block = allocator.allocate(kHeaderBytes);
  return block.get() != nullptr && block.get() == block.get_context();
}

}  // namespace

namespace front {

void* from_plan(c10::DeviceType type, std::size_t bytes) {
  return tl_script != nullptr && tl_script->device_type() == type ? tl_script->take(bytes) : nullptr;
}

void allocated(c10::DeviceType type, std::size_t bytes, const void* data) {
  if (tl_events != nullptr && tl_events_of == type)
    tl_events->push_back({false, static_cast<std::int64_t>(bytes), data});
  if (tl_live_blocks != nullptr) tl_live_blocks->allocated(data);
}

bool freed(c10::DeviceType type, const void* data) {
  if (tl_events != nullptr && tl_events_of == type) tl_events->push_back({true, 0, data});
  if (tl_live_blocks != nullptr) tl_live_blocks->freed(data);
  if (tl_script != nullptr && tl_script->device_type() == type && tl_script->give_back(data)) return true;
  return dies_in_arena(data);  // outlived its step; the executor has reported it
}

c10::DeviceType armed_for() { return tl_script != nullptr ? tl_script->device_type() : c10::DeviceType::CPU; }

void know_deleters(Deleter ours, Deleter earlier) {
  g_accelerators_deleter.store(ours);
  g_deleter_below_accelerators.store(earlier);
}

}  // namespace front

void count_bytes(std::int64_t bytes, c10::Device where) {
  Account& account = account_of(where);
  std::int64_t live = account.live.load(std::memory_order_relaxed);
  for (;;) {
    if (bytes > account.limit.load(std::memory_order_relaxed) - live) {
      if (Guardian* guardian = account.guardian.load()) guardian->make_room(bytes);
      live = account.live.load(std::memory_order_relaxed);
    } else if (account.live.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed)) {
      break;
    }
  }
  raise(account.peak, live + bytes);
}

void uncount_bytes(std::int64_t bytes, c10::Device where) {
  account_of(where).live.fetch_sub(bytes, std::memory_order_relaxed);
}

void install_allocator() {
  if (g_previous != nullptr) return;
  c10::Allocator* const previous = c10::GetCPUAllocator();
  if (!can_lie_below(*previous)) return;
  g_previous = previous;
  c10::SetCPUAllocator(&g_allocator, kPriority);
  // One that was put there with a higher priority goes on serving, below this one.
  if (c10::GetCPUAllocator() != &g_allocator)
    c10::SetCPUAllocator(&g_allocator, std::numeric_limits<std::uint8_t>::max());
}

void require_allocator() {
  if (c10::GetCPUAllocator() == &g_allocator) return;
  const char* const why =
      g_previous == nullptr
          ? "the CPU allocator that another library has given it keeps its blocks so that nothing can be put before it"
          : "another library has given it an allocator of its own since stowage was imported: import stowage after it";
  throw Error(
      std::string("PyTorch does not ask stowage for its tensors' memory, so nothing can be planned or limited: ") +
      why);
}

BlockOrigin block_origin(void* data, void (*deleter)(void*)) {
  if (deleter == &release_block || data == nullptr || is_result_in_pages(deleter)) return BlockOrigin::kOurs;
  if (deleter != nullptr && deleter == g_accelerators_deleter.load()) return BlockOrigin::kOurs;
  if (deleter != nullptr && deleter == g_deleter_below_accelerators.load()) return BlockOrigin::kEarlier;
  return g_previous != nullptr && deleter == g_previous->raw_deleter() ? BlockOrigin::kEarlier : BlockOrigin::kForeign;
}

bool of_another_library(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get() != nullptr && block_origin(data.get(), data.get_deleter()) == BlockOrigin::kForeign;
}

void set_guardian(Guardian* guardian, std::int64_t limit_bytes, c10::Device where) {
  account_of(where).guardian.store(guardian);
  set_limit(guardian != nullptr ? limit_bytes : std::numeric_limits<std::int64_t>::max(), where);
}

void set_limit(std::int64_t limit_bytes, c10::Device where) { account_of(where).limit.store(limit_bytes); }

Guardian* guardian_of(c10::Device where) { return account_of(where).guardian.load(); }

void** block_mark(void* data, void (*deleter)(void*)) {
  if (deleter != nullptr && deleter == g_accelerators_deleter.load()) return FrontBlocks::mark(data);
  Header* const header = header_of(data, deleter);
  return header == nullptr ? nullptr : &header->mark;
}

std::int32_t block_owner(void* data, void (*deleter)(void*)) {
  if (deleter != nullptr && deleter == g_accelerators_deleter.load()) return FrontBlocks::owner(data);
  const Header* const header = header_of(data, deleter);
  return header == nullptr ? owners::kNobody : header->owner;
}

void give_block_to(void* data, void (*deleter)(void*), std::int32_t owner) {
  if (deleter != nullptr && deleter == g_accelerators_deleter.load()) return FrontBlocks::give_to(data, owner);
  Header* const header = header_of(data, deleter);
  if (header == nullptr || header->owner == owner) return;
  owners::dies(header->owner, header->bytes);
  header->owner = owner;
  owners::moves(owner, header->bytes);
}

std::int64_t live_bytes(c10::Device where) { return account_of(where).live.load(); }
std::int64_t peak_bytes(c10::Device where) { return account_of(where).peak.load(); }

void reset_peak(c10::Device where) {
  Account& account = account_of(where);
  account.peak.store(account.live.load());
}

void raise_peak(std::int64_t bytes, c10::Device where) { raise(account_of(where).peak, bytes); }

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

// ---- Guards

WatchAllocations::WatchAllocations(std::vector<AllocationEvent>& events, c10::DeviceType of)
    : previous_(tl_events), previous_type_(tl_events_of) {
  tl_events = &events;
  tl_events_of = of;
}
WatchAllocations::~WatchAllocations() {
  tl_events = previous_;
  tl_events_of = previous_type_;
}
PauseWatching::PauseWatching() : events_(tl_events) { tl_events = nullptr; }
PauseWatching::~PauseWatching() { tl_events = events_; }
PauseWatching::Resume::Resume(const PauseWatching& pause) { tl_events = pause.events_; }
PauseWatching::Resume::~Resume() { tl_events = nullptr; }
LiveBlocks::LiveBlocks() : previous_(tl_live_blocks) { tl_live_blocks = this; }
LiveBlocks::~LiveBlocks() { stop(); }

void LiveBlocks::stop() {
  if (stopped_) return;
  stopped_ = true;
  LiveBlocks** link = &tl_live_blocks;
  while (*link != nullptr && *link != this) link = &(*link)->previous_;
  if (*link == this) *link = previous_;
}
ArmScript::ArmScript(AllocationScript& script) : previous_(tl_script) { tl_script = &script; }
ArmScript::~ArmScript() { tl_script = previous_; }

Unarmed::Unarmed() : script_(std::exchange(tl_script, nullptr)), events_(std::exchange(tl_events, nullptr)) {}
Unarmed::~Unarmed() {
  tl_script = script_;
  tl_events = events_;
}

}  // namespace stowage::runtime
