// Tensor.tolist() and Tensor.numpy() inside a step: Python wants all elements of a tensor at once, not one number.
//
//   Python    x.tolist()                                         stowage::content(x) is an op like item(): recorded, matched, and told
//   instead   stowage::content(x, false) ► 64-bit words ► list    when the step's Python waits for it (numbers.h)
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace stowage::runtime {

bool tells_content(const c10::OperatorHandle& op);

}  // namespace stowage::runtime
