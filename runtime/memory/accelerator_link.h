// The link of an accelerator: pinned host memory, and a stream for each direction.
//
//   compute   ▒ op 3 ▒──e──▒ op 4 ▒ ▒ op 5 ▒◄──────────── waits only where the copy is due ─┐
//   out                └─► ██ a ████ ──e──────────────────────────────────────────────────────┘
//   in                        ██ c ██
//
// An event on the compute stream says that the copy may begin, one on the lane's that it has ended; the host waits for
// neither. So an arena range is written again only after its copy, and host memory too: a range of the store is given to
// another buffer only after the copy that has read it was finished.
//
// The store is made of chunks that are powers of two: the allocator of pinned memory rounds others up to the next one.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "runtime/memory/host_store.h"
#include "runtime/memory/link.h"

namespace stowage::runtime {

std::shared_ptr<HostStore> pinned_store(c10::Device where, std::int64_t limit_bytes);

// `store`: one of pinned_store().
std::unique_ptr<Link> stream_link(c10::Device where, std::shared_ptr<HostStore> store);

}  // namespace stowage::runtime
