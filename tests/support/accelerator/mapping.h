// The device's memory: one file in memory, mapped twice.
//
//   memfd            ┌────────────────────────────────┐
//                    │  bytes                         │
//                    └────────────────────────────────┘
//   device view      ▲ PROT_NONE: Tensor::data_ptr() says these addresses; whoever touches them dies by SIGSEGV
//   kernels' view    ▲ read and write: where kernels and copies of the stand-in find the same bytes
//
// A signal handler tells which address was touched, counts it, and lets the process die as it would have died.
#pragma once

#include <cstddef>

namespace standin {

inline constexpr std::size_t kSpanBytes = std::size_t{64} << 30;  // of addresses; memory is taken when it is written

char* device_base();
bool on_device(const void* address);                          // in the device view
bool in_kernels_view(const void* address);                    // in the other
void* kernels_view(const void* address);                      // of a device address; nullptr stays
void* device_view(const void* address);                       // of an address in the kernels' view
void give_back_pages(std::size_t offset, std::size_t bytes);  // to the system; they read as zeros then

}  // namespace standin
