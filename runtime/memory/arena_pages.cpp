#include "runtime/memory/arena_pages.h"

#include <c10/core/Device.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/memory/allocator.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

struct ArenaPages::Result {
  std::shared_ptr<ArenaPages> pages;
  const char* address;

  static void die(void* context) {
    const std::unique_ptr<Result> self(static_cast<Result*>(context));
    self->pages->dies(self->address);
  }
};

ArenaPages::ArenaPages(std::int64_t bytes) : bytes_(bytes) {
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
  base_ = reinterpret_cast<char*>(aligned);
  mapped_bytes_ = static_cast<std::int64_t>(usable);
  // A hint: no plan depends on it
  if (usable <= static_cast<std::size_t>(bytes) + kHugePageBytes / 2) madvise(base_, usable, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  // likewise: all of it will be used, so no kernel need wait for pages
  madvise(base_, static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE);
#endif
}

ArenaPages::~ArenaPages() {
  munmap(base_, static_cast<std::size_t>(mapped_bytes_));
  if (!parted_) uncount_bytes(bytes_);
}

c10::DataPtr ArenaPages::stay(void* address, std::int64_t bytes) {
  const auto* const at = static_cast<const char*>(address);
  auto result = std::make_unique<Result>(Result{shared_from_this(), at});
  {
    const std::lock_guard lock(mutex_);
    results_.emplace(at, bytes);
  }
  results_alive_.fetch_add(1, std::memory_order_relaxed);
  return {address, result.release(), &Result::die, c10::Device(c10::DeviceType::CPU)};
}

void ArenaPages::dies(const char* address) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = results_.find(address);
    if (parted_) {
      uncount_bytes(it->second);
      give_back(address, address + it->second);
    }
    results_.erase(it);
  }
  results_alive_.fetch_sub(1, std::memory_order_release);
}

template <class With>
void ArenaPages::beside_results(const char* end, const With& with) {
  char* from = base_;
  for (const auto& [address, bytes] : results_) {
    with(from, address);
    from += address + bytes - from;
  }
  with(from, end);
}

void ArenaPages::part() {
  const std::lock_guard lock(mutex_);
  parted_ = true;
  beside_results(base_ + mapped_bytes_, &give_back);
  std::int64_t beside_bytes = bytes_;
  for (const auto& [address, bytes] : results_) beside_bytes -= bytes;
  uncount_bytes(beside_bytes);
}

void ArenaPages::fill(int value) {
  const std::lock_guard lock(mutex_);
  beside_results(base_ + bytes_, [value](char* from, const char* to) {
    std::memset(from, value, static_cast<std::size_t>(to - from));
  });
}

bool is_result_in_pages(void (*deleter)(void*)) { return deleter == &ArenaPages::Result::die; }

void ArenaPages::give_back(const char* from, const char* to) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(from) + page - 1) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(to) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace stowage::runtime
