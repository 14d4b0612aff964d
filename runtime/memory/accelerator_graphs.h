// Graphs of an accelerator: kernels that it notes once, and runs again in one piece.
//
//   stream of graphs   ─ capture ── kernel 1, kernel 2, … ── end      noted: kernels, addresses, numbers; none runs
//   current stream     ──────────────────────────────────────────── replay ─ 1 ─ 2 ─ … ──►
//
// Who notes is PyTorch's generic at::accelerator::Graph (from 2.13 on), but where an accelerator is known to have another way,
// in all versions (cuda_graphs.cpp). All graphs of a device are noted on one stream, so what libraries keep for a stream (cuBLAS: 32 MiB
// to work in) is there once. All of them use it, wherever they run: so they run one after the other. And none runs any more
// once a block that was asked for on that stream is freed.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "runtime/memory/device.h"

namespace stowage::runtime {

// What is asked for on the current stream between begin() and end() is noted.
class Capture {
 public:
  virtual ~Capture() = default;
  virtual void begin() = 0;
  virtual void end() = 0;  // throws where it could not be noted
  virtual void replay() = 0;
};

struct WayOfGraphs {
  std::unique_ptr<Capture> (*capture)() = nullptr;
  c10::Stream (*stream)(c10::Device where) = nullptr;  // on which nobody else works
};

// For accelerators that have another way than PyTorch's generic one. At the time when the library is loaded.
bool know_graphs(c10::DeviceType type, WayOfGraphs way);

// nullptr: this device has none.
std::unique_ptr<Device::Graphs> stream_graphs(c10::Device where);

}  // namespace stowage::runtime
