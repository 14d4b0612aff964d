// Sparse tensors that a step comes by and only reads: the adjacency of a graph, a fixed transform.
//
//   adj ──► mm(adj, x)            a product: each call gives it the sparse tensor as it gives a number
//    └─► t() ──► mm(adjᵀ, grad)   what makes one sparse tensor of another runs whenever Python asks for it, and is not recorded
//
// They have no storage, so no place in a plan. A step that has some runs its Python in every call: then the products
// get the sparse tensors of that call, with the content that they have.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <vector>

namespace stowage::runtime {

bool is_sparse(const at::Tensor& tensor);
bool is_sparse(const c10::IValue& value);
bool any_sparse(const std::vector<c10::IValue>& arguments);

// Makes a sparse tensor of the one that it is given, and is given no other tensor.
bool reshapes_sparse(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
// A kernel that only reads its sparse operands. (Where it gives a sparse result, the step is refused by that.)
bool multiplies_sparse(const c10::OperatorHandle& op);

// To a kernel: it allocates the same for both.
bool of_one_form(const at::Tensor& a, const at::Tensor& b);
// The dense tensors that hold its indices and values.
std::vector<at::Tensor> parts_of_sparse(const at::Tensor& sparse);

}  // namespace stowage::runtime
