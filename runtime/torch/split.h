// Splitting list ops (_foreach_*, _fused_adamw_) into one op per element.
//
//   _foreach_add_([a, b], 1)   ──►   _foreach_add_([a], 1)   _foreach_add_([b], 1)
//
// Each element's update reads and writes only its own tensors, so it can follow its gradient at once instead of waiting
// for all of them: in a small-batch step the waiting gradients are most of the peak. On CPU these kernels loop over
// their lists, so the bits are the same.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace stowage::runtime {

// Splits a list op's stack into one stack per element, or returns nothing when its lists do not line up.
std::vector<torch::jit::Stack> split_list_op(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Joins the returns of the split ops.
void join_results(const c10::OperatorHandle& op, std::vector<torch::jit::Stack>& parts, torch::jit::Stack* stack);

}  // namespace stowage::runtime
