// While a kernel runs on a thread, the CPU memory that it asks for is device memory.
//
//   CPU kernel ──► c10::GetCPUAllocator() = router ─┬─► c10::GetAllocator(PrivateUse1), or who lies in front of it
//   other thread ──────────────────────────────────►┴─► the CPU allocator that was there
//
// A kernel gets the kernels' view of a block; a table by address keeps the block itself. So results and scratch are
// counted, limited and placed as on a GPU. The router is installed only while a kernel runs: between kernels the CPU
// allocator is whose it was (stowage's, for one). A kernel of a graph gets the memory that it got when it was noted. Memory that a kernel's helper threads ask for stays the host's.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <vector>

#include "graphs.h"

namespace standin {

class InKernel {
 public:
  // `capture`, where it is noted: hears of the memory that the kernel asks for, which goes to `taken`.
  explicit InKernel(Capture* capture = nullptr, std::vector<Piece>* taken = nullptr);
  // In a graph that is replayed: these pieces are what it gets, in order.
  explicit InKernel(const std::vector<Piece>& again);
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

// Memory that a kernel got, as a device block: the block behind it; for other memory a new one with the same bytes.
c10::DataPtr to_device_block(c10::DataPtr memory, std::size_t bytes);

}  // namespace standin
