// The front of an accelerator's allocator: what lies before it, hears of its blocks, and answers from a plan.
//
//   allocate(n) ──► planned? ── yes ──► arena + offset
//                      │ no
//                      ▼
//               the device's allocator ──► block ──► a table by address keeps it until it is freed
//
// No header lies before a block: the host may not write there. The table is behind a mutex: about 0.1 us an allocation,
// beside kernel launches of 5 us. How a front is put in its place differs: by c10::SetAllocator, but where an accelerator
// takes its blocks from somewhere else (cuda_front.cpp).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/memory/allocator.h"
#include "runtime/memory/arena.h"

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
    c10::DataPtr block = below(n);
    void* const data = block.get();
    const c10::Device where = block.device();
    {
      const std::lock_guard lock(mutex());
      blocks().insert_or_assign(data, std::move(block));
    }
    front::allocated(where.type(), n, data);
    return {data, data, &release, where};
  }

  // The deleter of all blocks.
  static void release(void* data);

  // visit(block) with the block as it came from below, if it came through a front; else false.
  template <class Visit>
  static bool with(const void* data, Visit visit) {
    const std::lock_guard lock(mutex());
    const auto it = blocks().find(data);
    if (it == blocks().end()) return false;
    visit(std::as_const(it->second));
    return true;
  }

 private:
  static std::mutex& mutex();
  static std::unordered_map<const void*, c10::DataPtr>& blocks();
};

// Puts a front in its place, or finds it there. Returns who lies below, whose blocks no plan knows.
using PutFront = c10::DeviceAllocator& (*)(c10::DeviceType type);

// For accelerators that need another way than c10::SetAllocator. At the time when the library is loaded.
bool know_front(c10::DeviceType type, PutFront put);

// Throws Error where there is no allocator that a front can lie before.
c10::DeviceAllocator& put_front(c10::DeviceType type);

}  // namespace stowage::runtime
