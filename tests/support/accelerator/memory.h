// The device's allocator: blocks of a span of addresses by best fit, a hard limit, and frees in stream order.
//
//   allocate   smallest hole that fits, its low end      taken + bytes > limit: waits for frees, then OutOfMemoryError
//   free       streams idle: a hole at once              else: the block waits for the tickets of its streams
//
//     block ──free──► stream 0 at ticket 41 (where it was allocated), stream 3 at ticket 7 (record_stream) ──► hole
//
// A block belongs to the stream that was current when it was allocated, as on CUDA: freeing it is safe while jobs of
// that stream, or of streams that it was recorded on, are under way. A job of another stream that comes later finds the
// bytes of whoever has the block then (or poison). allocated_bytes fall with the free, reserved_bytes with the hole.
// There is no cache: reserved is what is taken, and addresses are reused at once.
//
// Cost: O(holes) to allocate, O(log blocks) to free.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

namespace standin {

c10::DeviceAllocator& allocator();

// The block that holds the address is used on the stream; it is no hole before what that stream has been given by the
// time of the free has run.
void used_on(const void* address, c10::StreamId stream);

}  // namespace standin
