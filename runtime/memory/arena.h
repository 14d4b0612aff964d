// The memory that plans place buffers in, on huge pages where the system has them.
#pragma once

#include <cstdint>

namespace stowage::runtime {

// One contiguous range that plans place buffers in. Counted as one live block of the allocator, of exactly bytes().
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes the arena at least `bytes` large; what it held is lost. Must not be called while blocks of it are live.
  void reserve(std::int64_t bytes);
  // Gives the memory back until the next reserve().
  void release();
  // Fills it with a byte; for tests of plans that must not depend on what was there.
  void fill(int value);

  [[nodiscard]] char* base() const { return base_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t mapped_bytes() const { return mapped_bytes_; }  // what lies behind bytes() is nobody's

 private:
  char* base_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t mapped_bytes_ = 0;
  int slot_ = -1;
};

// Does the address lie in an arena that is alive, of any thread? O(arenas).
bool in_arena(const void* address);

}  // namespace stowage::runtime
