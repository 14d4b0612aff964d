// A model of PyTorch's caching allocator for CUDA, in its default settings (c10/cuda/CUDACachingAllocator.cpp, PyTorch
// 2.13).
//
//   request        rounded to        pool     new segment when no free block fits      a block is split when it leaves
//   up to 1 MiB    512 B             small    2 MiB                                    at least 512 B
//   up to 10 MiB   512 B             large    20 MiB                                   more than 1 MiB
//   above          512 B             large    the request, rounded up to 2 MiB         more than 1 MiB
//
//   segment  ├ live ┤├ free ─────┤├ live ─┤├ free ┤     best fit: the smallest free block of the pool that holds the request, the
//                                                       lowest address among equals; a freed block merges with its free neighbours
//
// Segments are never given back: the device is taken to be large enough. Streams, expandable segments and garbage
// collection are not modelled. O(log n) a call.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "stowage/graph.h"

namespace stowage::rivals {

class CachingAllocator {
 public:
  using Block = std::int32_t;

  // -1 for zero bytes, which take no block.
  Block allocate(std::int64_t bytes);
  void release(Block block);

  [[nodiscard]] std::int64_t allocated_bytes() const { return allocated_; }  // rounded
  [[nodiscard]] std::int64_t reserved_bytes() const { return reserved_; }    // of all segments

 private:
  struct Part {
    std::int64_t address = 0;
    std::int64_t bytes = 0;
    Block before = -1, behind = -1;  // neighbours in the segment
    bool small = false;
    bool free = false;
  };
  using Pool = std::set<std::tuple<std::int64_t, std::int64_t, Block>>;  // free blocks: bytes, address, block

  Block new_segment(std::int64_t bytes, bool small);
  void split(Block block, std::int64_t bytes);
  Block merge(Block left, Block right);
  Part& part(Block block) { return parts_[static_cast<std::size_t>(block)]; }
  Pool& pool(bool small) { return small ? small_ : large_; }

  std::vector<Part> parts_;
  Pool small_, large_;
  std::int64_t next_address_ = 0;
  std::int64_t allocated_ = 0, reserved_ = 0;
};

struct AllocatorPeaks {
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
};

// One step in `order` from an empty cache, each buffer freed after its last use; residents are not counted.
AllocatorPeaks caching_allocator_peaks(const Graph& graph, std::span<const OpId> order);

}  // namespace stowage::rivals
