// Functional collectives, run so that a plan can hold them.
//
//   _c10d_functional::all_reduce(x)      as PyTorch runs it: result filled by another thread, which keeps both tensors for a while
//   wait_tensor(y)                       longer than anybody waits for
//
//   here:  y <- allocate    group works on borrowed memory of x and y    wait    y is complete, and nobody else holds x or y
//
// So a collective is an op like others: it reads x and makes y (and, having an effect outside, keeps its place among
// its kind). The wait that follows finds nothing to wait for. Overlap with compute is lost; on CPU, where a rank's
// threads share the cores, there is little of it. Gloo has no reduce-scatter that allocates nothing: there it is a sum
// of everything, of which a part is kept.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace stowage::runtime {

// A functional collective that run_collective() knows; it acts outside its buffers.
bool is_collective(const c10::OperatorHandle& op);

// The op's arguments on the stack, replaced by its result. Throws what the process group throws (a peer that is gone, a
// timeout).
void run_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace stowage::runtime
