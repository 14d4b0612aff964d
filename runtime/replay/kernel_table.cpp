#include "runtime/replay/kernel_table.h"

#include <algorithm>
#include <array>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr std::array kKernels = std::to_array<KernelFacts>({
    // of one tensor
    {"aten::abs", InPlace::kByElement},
    {"aten::bitwise_not", InPlace::kByElement},
    {"aten::ceil", InPlace::kByElement},
    {"aten::clamp", InPlace::kByElement},
    {"aten::clamp_max", InPlace::kByElement},
    {"aten::clamp_min", InPlace::kByElement},
    {"aten::cos", InPlace::kByElement},
    {"aten::elu", InPlace::kByElement},
    {"aten::erf", InPlace::kByElement},
    {"aten::erfc", InPlace::kByElement},
    {"aten::exp", InPlace::kByElement},
    {"aten::exp2", InPlace::kByElement},
    {"aten::expm1", InPlace::kByElement},
    {"aten::floor", InPlace::kByElement},
    {"aten::gelu", InPlace::kByElement},
    {"aten::hardsigmoid", InPlace::kByElement},
    {"aten::hardswish", InPlace::kByElement},
    {"aten::hardtanh", InPlace::kByElement},
    {"aten::leaky_relu", InPlace::kByElement},
    {"aten::log", InPlace::kByElement},
    {"aten::log10", InPlace::kByElement},
    {"aten::log1p", InPlace::kByElement},
    {"aten::log2", InPlace::kByElement},
    {"aten::logical_not", InPlace::kByElement},
    {"aten::mish", InPlace::kByElement},
    {"aten::neg", InPlace::kByElement, InSlices::kElements},
    {"aten::reciprocal", InPlace::kByElement},
    {"aten::relu", InPlace::kByElement},
    {"aten::round", InPlace::kByElement},
    {"aten::rsqrt", InPlace::kByElement},
    {"aten::sgn", InPlace::kByElement},
    {"aten::sigmoid", InPlace::kByElement},
    {"aten::sign", InPlace::kByElement},
    {"aten::silu", InPlace::kByElement},
    {"aten::sin", InPlace::kByElement},
    {"aten::softplus", InPlace::kByElement},
    {"aten::sqrt", InPlace::kByElement},
    {"aten::tan", InPlace::kByElement},
    {"aten::tanh", InPlace::kByElement},
    {"aten::threshold", InPlace::kByElement},
    {"aten::trunc", InPlace::kByElement},
    // of two or three; the others may be broadcast
    {"aten::add.Scalar", InPlace::kByElement},
    {"aten::add.Tensor", InPlace::kByElement, InSlices::kSum},
    {"aten::addcdiv", InPlace::kByElement},
    {"aten::addcmul", InPlace::kByElement},
    {"aten::bitwise_and.Tensor", InPlace::kByElement},
    {"aten::bitwise_or.Tensor", InPlace::kByElement},
    {"aten::clamp.Tensor", InPlace::kByElement},
    {"aten::div.Scalar", InPlace::kByElement, InSlices::kElements},
    {"aten::div.Tensor", InPlace::kByElement, InSlices::kElements},
    {"aten::div.Tensor_mode", InPlace::kByElement},
    {"aten::lerp.Scalar", InPlace::kByElement},
    {"aten::lerp.Tensor", InPlace::kByElement},
    {"aten::logical_and", InPlace::kByElement},
    {"aten::logical_or", InPlace::kByElement},
    {"aten::maximum", InPlace::kByElement},
    {"aten::minimum", InPlace::kByElement},
    {"aten::mul.Scalar", InPlace::kByElement, InSlices::kElements},
    {"aten::mul.Tensor", InPlace::kByElement, InSlices::kElements},
    {"aten::pow.Scalar", InPlace::kByElement},
    {"aten::pow.Tensor_Scalar", InPlace::kByElement},
    {"aten::pow.Tensor_Tensor", InPlace::kByElement},
    {"aten::rsub.Scalar", InPlace::kByElement},
    {"aten::rsub.Tensor", InPlace::kByElement},
    {"aten::sub.Scalar", InPlace::kByElement},
    {"aten::sub.Tensor", InPlace::kByElement, InSlices::kSum},
    {"aten::where.self", InPlace::kByElement, InSlices::kElements},
    // backward of activations
    {"aten::elu_backward", InPlace::kByElement},
    {"aten::gelu_backward", InPlace::kByElement},
    {"aten::hardsigmoid_backward", InPlace::kByElement},
    {"aten::hardswish_backward", InPlace::kByElement},
    {"aten::hardtanh_backward", InPlace::kByElement},
    {"aten::leaky_relu_backward", InPlace::kByElement},
    {"aten::mish_backward", InPlace::kByElement},
    {"aten::sigmoid_backward", InPlace::kByElement},
    {"aten::silu_backward", InPlace::kByElement},
    {"aten::softplus_backward", InPlace::kByElement},
    {"aten::tanh_backward", InPlace::kByElement},
    {"aten::threshold_backward", InPlace::kByElement},
    // dropout: a mask, then products
    {"aten::native_dropout", InPlace::kByElement},
    {"aten::native_dropout_backward", InPlace::kByElement},
    // of optimizers, one element of the lists at a time
    {"aten::_foreach_add.List", InPlace::kByElement},
    {"aten::_foreach_add.Scalar", InPlace::kByElement},
    {"aten::_foreach_div.List", InPlace::kByElement},
    {"aten::_foreach_div.Scalar", InPlace::kByElement},
    {"aten::_foreach_mul.List", InPlace::kByElement},
    {"aten::_foreach_mul.Scalar", InPlace::kByElement},
    {"aten::_foreach_neg", InPlace::kByElement},
    {"aten::_foreach_reciprocal", InPlace::kByElement},
    {"aten::_foreach_sqrt", InPlace::kByElement},
    {"aten::_foreach_sub.List", InPlace::kByElement},
    {"aten::_foreach_sub.Scalar", InPlace::kByElement},
    // by row
    {"aten::_log_softmax", InPlace::kByRow, InSlices::kNo, 1},
    {"aten::_log_softmax_backward_data", InPlace::kByRow, InSlices::kLogSoftmaxBackward, 2},
    {"aten::_softmax", InPlace::kByRow, InSlices::kNo, 1},
    {"aten::_softmax_backward_data", InPlace::kByRow, InSlices::kNo, 2},
    // whose result has another form than the operands
    {"aten::embedding_dense_backward", InPlace::kNo, InSlices::kEmbeddingBackward},
    {"aten::masked_fill.Scalar", InPlace::kNo, InSlices::kElements},
    {"aten::nll_loss_backward", InPlace::kNo, InSlices::kNllBackward},
});

template <class Listed>
std::vector<std::string> names_of(Listed listed) {
  std::vector<std::string> names;
  for (const KernelFacts& kernel : kKernels)
    if (listed(kernel)) names.emplace_back(kernel.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

const KernelFacts& facts_of(const c10::OperatorHandle& op) { return facts_named(full_name(op)); }

const KernelFacts& facts_named(std::string_view name) {
  static constexpr KernelFacts kNone;
  const auto* found =
      std::find_if(kKernels.begin(), kKernels.end(), [&](const KernelFacts& k) { return k.name == name; });
  return found == kKernels.end() ? kNone : *found;
}

std::vector<std::string> in_place_reuse_ops() {
  return names_of([](const KernelFacts& kernel) { return kernel.in_place != InPlace::kNo; });
}

std::vector<std::string> row_slice_ops() {
  return names_of([](const KernelFacts& kernel) { return kernel.in_slices != InSlices::kNo; });
}

}  // namespace stowage::runtime
