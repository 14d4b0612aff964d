// Any accelerator that PyTorch knows, through the generic classes of c10 and ATen alone.
//
//   front     front.h
//   streams   c10::impl::VirtualGuardImpl, c10::Event           pinned memory   at::getHostAllocator
//   bytes     Tensor::copy_ and fill_ of byte tensors over them, below autograd and all modes
#pragma once

#include "runtime/memory/device.h"

namespace stowage::runtime {

// Throws Error when PyTorch knows no such accelerator, or it has no allocator that a front can lie before.
Device& accelerator(c10::Device where);

}  // namespace stowage::runtime
