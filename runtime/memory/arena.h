// The memory that plans place buffers in: on the CPU on huge pages where the system has them, on an accelerator one block
// of its allocator.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "runtime/memory/arena_pages.h"
#include "runtime/memory/device.h"

namespace stowage::runtime {

// One contiguous range that plans place buffers in. Counted as one live block of the allocator, of exactly bytes().
// Steps that use it one after the other may be asked for on different streams of an accelerator: begin_use() and
// end_use() order them.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes the arena at least `bytes` large, there; what it held is lost. Must not be called while blocks of it are live.
  void reserve(c10::Device where, std::int64_t bytes);
  void reserve(std::int64_t bytes) { reserve(where_, bytes); }
  // Gives the memory back until the next reserve(), but that of results which have stayed.
  void release();

  // The same while somebody still holds so many blocks of it: the memory stays theirs until the last of them is freed.
  void abandon(std::size_t blocks);

  // On the CPU: these bytes of it are a result's until the pointer dies.
  [[nodiscard]] c10::DataPtr stay(void* address, std::int64_t bytes) { return pages_->stay(address, bytes); }
  // Such results live: who writes here without release() destroys them.
  [[nodiscard]] bool has_results() const { return pages_ && pages_->have_results(); }
  [[nodiscard]] bool holds(const void* address) const {
    const auto* p = static_cast<const char*>(address);
    return base_ != nullptr && p >= base_ && p < base_ + mapped_bytes_;
  }
  // A step has found results where it had to write. Once that is so, it stays so.
  [[nodiscard]] bool results_outlive() const { return results_outlive_; }
  void note_results_outlive() { results_outlive_ = true; }
  // Fills it with a byte, around results that have stayed; for tests of plans that must not depend on what was there.
  void fill(int value);

  // Around each step.
  void begin_use();
  void end_use();

  [[nodiscard]] c10::DeviceType device_type() const { return where_.type(); }
  [[nodiscard]] Device& device() const { return device_at(where_); }
  [[nodiscard]] char* base() const { return base_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t mapped_bytes() const { return mapped_bytes_; }  // what lies behind bytes() is nobody's

 private:
  void map(std::int64_t bytes);

  c10::Device where_{c10::DeviceType::CPU};
  c10::DataPtr block_;                 // of an accelerator
  std::shared_ptr<ArenaPages> pages_;  // of the CPU
  std::unique_ptr<Device::Order> order_;
  char* base_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t mapped_bytes_ = 0;
  int slot_ = -1;
  bool results_outlive_ = false;
};

// Does the address lie in an arena that is alive, of any thread? O(arenas).
bool in_arena(const void* address);
// The same, of a block that dies.
bool dies_in_arena(const void* address);

}  // namespace stowage::runtime
