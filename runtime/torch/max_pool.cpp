// max_pool1d without a gradient. PyTorch's kernel is a composite: above autograd it allocates its result and fills it
// past the dispatcher, so an interceptor below autograd would see a tensor that nobody has written. While a step is
// intercepted the op therefore passes autograd as a whole, and is a leaf like any other (hook.cpp, is_leaf_itself).
//
//     max_pool1d ──▶ autograd ──▶ gradient wanted: max_pool1d_with_indices ──▶ interceptor ──▶ kernel
//                             ──▶ none wanted:     max_pool1d              ──▶ interceptor ──▶ composite, fills memory
//
// Source: aten/src/ATen/native/Pooling.cpp in PyTorch 2.11 to 2.13.
#include <ATen/ops/max_pool1d_native.h>
#include <ATen/ops/max_pool1d_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "runtime/torch/hook.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

at::Tensor max_pool1d(c10::DispatchKeySet keys, const at::Tensor& input, at::IntArrayRef kernel, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  if (!intercepting() || is_differentiated(input))
    return at::native::max_pool1d(input, kernel, stride, padding, dilation, ceil_mode);
  const c10::DispatchKeySet next = keys & c10::after_autograd_keyset;
  return at::_ops::max_pool1d::redispatch(next, input, kernel, stride, padding, dilation, ceil_mode);
}

}  // namespace
}  // namespace stowage::runtime

TORCH_LIBRARY_IMPL(aten, AutogradCPU, m) { m.impl("max_pool1d", TORCH_FN(stowage::runtime::max_pool1d)); }
