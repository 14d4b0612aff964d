// Every kernel of the device is the CPU's, run on twins (twins.h).
//
//   device tensors, device, generator ──► twins, CPU, CPU generator ──► CPU kernel ──► results as device tensors
//
// A kernel waits until its thread's current stream has run what it was given, then runs at once on the caller's thread.
// So the order of a stream is real; what overlaps with kernels is copies on other streams, not the host. While the stream
// captures, the kernel is noted as well (graphs.h).
//
// Each aten op that has a CPU kernel gets one on the device, too, so that none takes a decomposition for devices
// without (native_layer_norm has one whose bits differ). Ops of other libraries come through the fallback.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace standin {

// Of twins, where InKernel is alive.
void call_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void run_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace standin
