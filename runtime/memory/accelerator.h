// Any accelerator that PyTorch knows, through the generic classes of c10 and ATen alone.
//
//   front     c10::SetAllocator, a DeviceAllocator before the device's own
//   streams   c10::impl::VirtualGuardImpl, c10::Event           pinned memory   at::getHostAllocator
//   bytes     Tensor::copy_ and fill_ of byte tensors over them, below autograd and all modes
//
//   allocate(n) ──► planned? ── yes ──► arena + offset
//                      │ no
//                      ▼
//               the device's allocator ──► block ──► a table by address keeps it until it is freed
//
// No header lies before a block: the host may not write there. The table is behind a mutex: about 0.1 us an allocation,
// beside kernel launches of 5 us.
#pragma once

#include "runtime/memory/device.h"

namespace stowage::runtime {

// Throws Error when PyTorch knows no such accelerator, or it has no allocator that a front can lie before.
Device& accelerator(c10::Device where);

}  // namespace stowage::runtime
