// Finds accesses to the same bytes that nothing orders, though they happened to come one after the other.
//
//   stream 0   kernel writes x ─ record e            kernel writes x again    ◄── race: nothing makes stream 0 wait for
//                                │                                                the copy, which may still read x
//   stream 3                     └► block e ─ copy reads x
//
// Kernels of the stand-in run at once and links may be fast, so wrong programs often give right bits. Here each stream
// has a clock of vectors: how many operations of each stream come before its next one. Events and the host's waits carry
// clocks on. Each range of bytes keeps its last write and the reads since; an access that does not come after those that
// it must come after is a race. All host threads are one; host accesses are not seen.
//
// Cost: O(log ranges) an access, and a lock; nothing while Settings::check_order is off.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "streams.h"

namespace standin::order {

using Clock = std::array<std::int64_t, kStreams>;  // by stream

struct Bytes {
  const void* from = nullptr;
  std::size_t bytes = 0;
};
// From the first to the last byte of a tensor, whatever lies between its elements; none where it has none.
Bytes bytes_of(const at::Tensor& tensor);

void restart();

// An operation is given to the current stream; its accesses follow.
void begin_operation(const std::string& name);
void reads(const void* from, std::size_t bytes);
void writes(const void* to, std::size_t bytes);
void reads(const at::Tensor& tensor);
void writes(const at::Tensor& tensor);

Clock given_to(c10::StreamId stream);  // what an event recorded now stands for
void stream_waits(c10::StreamId stream, const Clock& until);
void host_waits(const Clock& until);

// What these streams did there is done, as who takes the bytes away knows. All streams, where none is named.
void forget(const void* from, std::size_t bytes, const std::vector<c10::StreamId>& streams);

}  // namespace standin::order
