// The front of an accelerator's allocator: what lies before it, hears of its blocks, and answers from a plan.
//
//   allocate(n) ──► planned? ── yes ──► arena + offset
//                      │ no
//                      ▼
//               the device's allocator ──► block ──► a table by address keeps it until it is freed
//
// No header lies before a block: the host may not write there. What a header would say stands in the table: who has
// marked the block, and the stream that was current when it was asked for. The table is behind a mutex: about 0.1 us an
// allocation, beside kernel launches of 5 us. How a front is put in its place differs: by c10::SetAllocator, but where an accelerator
// takes its blocks from somewhere else (cuda_front.cpp).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/memory/allocator.h"
#include "runtime/memory/arena.h"
#include "runtime/memory/owners.h"

namespace stowage::runtime {

// Blocks that fronts have handed out. Addresses of host and devices are all different.
class FrontBlocks {
 public:
  // `below(n)` serves what no plan does; `here` is the current device.
  template <class Below>
  static c10::DataPtr allocate(c10::Device here, std::size_t n, Below below) {
    if (n == 0) return below(n);
    if (void* const planned = front::from_plan(here.type(), n)) {
      front::allocated(here.type(), n, planned);
      return {planned, planned, &release, here};
    }
    const auto bytes = static_cast<std::int64_t>(n);
    count_bytes(bytes, here);
    c10::DataPtr block;
    for (;;) {
      try {
        block = below(n);
        break;
      } catch (const c10::OutOfMemoryError&) {
        Guardian* const guardian = guardian_of(here);
        if (guardian != nullptr && guardian->spare(bytes)) continue;
        uncount_bytes(bytes, here);
        throw;
      } catch (...) {
        uncount_bytes(bytes, here);
        throw;
      }
    }
    return take(std::move(block), bytes, /*earlier=*/false);
  }

  // Of the deleter of all blocks: one that came from below before there was a front is known from now on. Its bytes have
  // been counted (count_earlier()).
  static c10::DataPtr take_earlier(c10::DataPtr block, std::int64_t bytes);
  // What lies below is live, and came to no front's notice: it is counted now. `below_bytes`: of all that is live there.
  static void count_earlier(c10::Device where, std::int64_t below_bytes);

  // Where a block's mark is; nullptr when it is none of ours.
  static void** mark(const void* data);
  // As block_owner() and give_block_to().
  static owners::OwnerId owner(const void* data);
  static void give_to(const void* data, owners::OwnerId owner);
  // The stream that was current when it was asked for. Unknown where it is none of ours, or is older than the front.
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
  static std::int64_t stream(const void* data);

  // From now on freed() counts blocks that go and were asked for while that stream was current.
  static void watch(std::int64_t stream);
  static std::int64_t freed(std::int64_t stream);

  // The deleter of all blocks.
  static void release(void* data);

  // visit(block) with the block as it came from below, if it came through a front; else false.
  template <class Visit>
  static bool with(const void* data, Visit visit) {
    const std::lock_guard lock(mutex());
    const auto it = blocks().find(data);
    if (it == blocks().end()) return false;
    visit(std::as_const(it->second.inner));
    return true;
  }

 private:
  struct Block {
    c10::DataPtr inner;
    std::int64_t bytes = 0;
    std::int64_t stream = 0;
    owners::OwnerId owner = owners::kNobody;
    void* mark = nullptr;
  };

  static c10::DataPtr take(c10::DataPtr block, std::int64_t bytes, bool earlier);
  static std::mutex& mutex();
  static std::unordered_map<std::int64_t, std::int64_t>& watched();  // stream to how many
  static std::unordered_map<const void*, Block>& blocks();
};

// Puts a front in its place, or finds it there. Returns who lies below, whose blocks no plan knows.
using PutFront = c10::DeviceAllocator& (*)(c10::DeviceType type);

// For accelerators that need another way than c10::SetAllocator. At the time when the library is loaded.
bool know_front(c10::DeviceType type, PutFront put);

// Throws Error where there is no allocator that a front can lie before.
c10::DeviceAllocator& put_front(c10::DeviceType type);

}  // namespace stowage::runtime
