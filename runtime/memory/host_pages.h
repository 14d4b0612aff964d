// Host memory for what is large and kept for a moment: mapped by itself, in huge pages where the system has them, and
// given back whole. Not pinned: that is worth its time for what is copied in each step.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace stowage::runtime {

class HostPages {
 public:
  // Throws std::bad_alloc.
  explicit HostPages(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    data_ = mapped;
    madvise(data_, bytes_, MADV_HUGEPAGE);  // a hint
  }
  ~HostPages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  HostPages(HostPages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  HostPages& operator=(HostPages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace stowage::runtime
