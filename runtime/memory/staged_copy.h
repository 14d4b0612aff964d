// Large copies between an accelerator and plain pages of the host: through two pinned blocks, so that the link and the
// host's own copying, on all of its threads, go on at once.
//
//   link    | 0 || 1 |     | 2 |           piece i goes through block i modulo 2, once the block is free
//   host         | 0 || 1 ||  2 |
//
// A driver that is given plain pages does the same on one thread, and that thread asks the system for each page. O(bytes);
// the host waits for both.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace stowage::runtime {

// From so many bytes on.
inline constexpr std::int64_t kStagedBytes = std::int64_t{2} << 20;

void staged_to_host(void* to, const void* from, std::int64_t bytes, c10::Device where);
void staged_from_host(void* to, const void* from, std::int64_t bytes, c10::Device where);

}  // namespace stowage::runtime
