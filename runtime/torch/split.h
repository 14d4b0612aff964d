// Splitting list ops (_foreach_*, _fused_adamw_) into ops on pieces of their lists.
//
//   _foreach_add_([a, b, c], 1)   ──►   _foreach_add_([a], 1)   _foreach_add_([b, c], 1)
//
// Each element's update reads and writes only its own tensors, so it can follow its gradient at once instead of waiting
// for all of them: in a small-batch step the waiting gradients are most of the peak. The bits are the same, as a kernel
// treats each element alone.
//
// On CPU, where such a kernel is a loop over its list, each element is a piece. On an accelerator, where it is one
// launch for many elements, a piece has 1/32 of the bytes or more: at most that much waits longer, and there are at
// most 32 pieces and the large elements. A list of few bytes stays whole: the counters of an optimizer.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace stowage::runtime {

// Splits a list op's stack into one stack per piece, or returns nothing when its lists do not line up, or are of a piece
// already. The same lists are always split in the same way.
std::vector<torch::jit::Stack> split_list_op(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// While one lives, the ops of this thread are on pieces: whoever sees them next does not split them again.
class OnPieces {
 public:
  OnPieces();
  ~OnPieces();
  OnPieces(const OnPieces&) = delete;
  OnPieces& operator=(const OnPieces&) = delete;

 private:
  bool before_;
};

// Joins the returns of the split ops.
void join_results(const c10::OperatorHandle& op, std::vector<torch::jit::Stack>& parts, torch::jit::Stack* stack);

}  // namespace stowage::runtime
