// Pinned host memory: the only host memory that a copy beside the caller may read or write.
//
//   block   ├───────── asked ─────────┤····┤   counted up to a power of two, as CUDA's caching host allocator takes it
//   free    while copies use it: when the last one has run; so nobody gets the bytes of a copy that is under way
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace standin {

at::HostAllocator& pinned_allocator();
bool is_pinned(const void* address);

// A copy uses the block that holds the address, until it says that it is done. False: no pinned block.
bool begin_use(const void* address);
void end_use(const void* address);

}  // namespace standin
