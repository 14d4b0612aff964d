// The end of an autograd graph that backward has used up, for a result whose graph was never built again:
//
//   eager     loss ──▶ MeanBackward0 ──▶ PowBackward0 (what it saved is freed) ──▶ …
//   planned   loss ──▶ SpentGraph("MeanBackward0")
//
// Both require grad, show the same name, and raise the same error where backward comes a second time.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace stowage::runtime {

// `tensor` is no leaf then. name: of the node that it had.
void end_with_spent_graph(const at::Tensor& tensor, const std::string& name);

}  // namespace stowage::runtime
