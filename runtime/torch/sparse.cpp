#include "runtime/torch/sparse.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/SparseTensorUtils.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr auto kReshapes = std::to_array<std::string_view>({"aten::t", "aten::transpose.int", "aten::detach"});
constexpr auto kProducts =
    std::to_array<std::string_view>({"aten::mm", "aten::bmm", "aten::mv", "aten::addmm", "aten::_sparse_addmm",
                                     "aten::_sparse_mm_reduce_impl", "aten::_sparse_mm_reduce_impl_backward"});

bool among(const auto& names, const c10::OperatorHandle& op) {
  return std::find(names.begin(), names.end(), full_name(op)) != names.end();
}

}  // namespace

bool is_sparse(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  switch (tensor.layout()) {
    case c10::kSparse:
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc: return true;
    default: return false;
  }
}

bool is_sparse(const c10::IValue& value) { return value.isTensor() && is_sparse(value.toTensor()); }

bool reshapes_sparse(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  return count > 0 && is_sparse(stack[stack.size() - count]) && among(kReshapes, op);
}

bool multiplies_sparse(const c10::OperatorHandle& op) { return among(kProducts, op); }

bool of_one_form(const at::Tensor& a, const at::Tensor& b) {
  if (a.layout() != b.layout() || a.sizes() != b.sizes() || a.dtype() != b.dtype() || a.device() != b.device())
    return false;
  if (a.layout() == c10::kSparse &&
      at::sparse::get_sparse_impl(a)->coalesced() != at::sparse::get_sparse_impl(b)->coalesced())
    return false;
  const std::vector<at::Tensor> x = parts_of_sparse(a);
  const std::vector<at::Tensor> y = parts_of_sparse(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const at::Tensor& p, const at::Tensor& q) {
    return p.sizes() == q.sizes() && p.strides() == q.strides() && p.dtype() == q.dtype();
  });
}

bool any_sparse(const std::vector<c10::IValue>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) { return is_sparse(value); });
}

std::vector<at::Tensor> parts_of_sparse(const at::Tensor& sparse) {
  if (sparse.layout() == c10::kSparse) {
    const at::SparseTensorImpl& parts = *at::sparse::get_sparse_impl(sparse);
    return {parts.indices(), parts.values()};
  }
  const at::SparseCsrTensorImpl& parts = *at::sparse_csr::get_sparse_csr_impl(sparse);
  return {parts.compressed_indices(), parts.plain_indices(), parts.values()};
}

}  // namespace stowage::runtime
