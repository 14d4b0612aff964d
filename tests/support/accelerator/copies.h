// Copies between host and device, over a link of settable speed.
//
//   to device   host ══════════► device        each direction is one link: copies of several streams follow each other
//   to host     host ◄══════════ device        there; both directions run at once
//
// A copy runs in its stream's queue. The caller goes on where it said non_blocking, the host side is pinned and the
// bytes need no change of layout or type; else it waits. On a slow link, half of the bytes move at the start and half
// at the end: whoever writes the source too early, or uses the target too early, gets wrong bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace standin {

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking);

}  // namespace standin
