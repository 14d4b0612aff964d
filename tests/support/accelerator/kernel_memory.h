// While a kernel runs on a thread, the CPU memory that it asks for is device memory.
//
//   CPU kernel ──► c10::GetCPUAllocator() = router ─┬─► c10::GetAllocator(PrivateUse1), or who lies in front of it
//   other thread ──────────────────────────────────►┴─► the CPU allocator that was there
//
// A kernel gets the kernels' view of a block; a table by address keeps the block itself. So results and scratch are
// counted, limited and placed as on a GPU. The router is installed only while a kernel runs: between kernels the CPU
// allocator is whose it was (stowage's, for one). Memory that a kernel's helper threads ask for stays the host's.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace standin {

class InKernel {
 public:
  InKernel();
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

// Memory that a kernel got, as a device block: the block behind it; for other memory a new one with the same bytes.
c10::DataPtr to_device_block(c10::DataPtr memory, std::size_t bytes);

}  // namespace standin
