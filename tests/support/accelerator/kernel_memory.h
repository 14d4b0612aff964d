// While a kernel runs on a thread, the CPU memory that it asks for is device memory.
//
//   CPU kernel ──► c10::GetCPUAllocator() = router ──► c10::GetAllocator(PrivateUse1)      whoever lies in front there,
//                                                                                           an interposed one, too
//   gets the kernels' view of the block; a table by address keeps the block itself
//
// So results and scratch of kernels are counted, limited and placed as on a GPU. Memory that a kernel's helper threads
// ask for stays the host's.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace standin {

void install_router();

class InKernel {
 public:
  InKernel();
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

// Memory that a kernel got, as a device block: the block behind it, where it is one; else a new one with the same bytes.
c10::DataPtr to_device_block(c10::DataPtr memory, std::size_t bytes);

}  // namespace standin
