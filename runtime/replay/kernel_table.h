// What each of PyTorch's kernels has read before it writes: which results may lie over an input, and which kernels give
// the same bits when they are called on some rows at a time.
//
//   in place    by element   element i is read before element i is written, by one loop (TensorIterator, or a vector
//                            library called with equal offsets), or by a few in a row of which only the first reads
//               by row       over the last dimension, contiguous: a row is reduced, then mapped element by element
//   in slices   the row r of the result follows from the row r of some operands and from others that all rows share, by
//               the same instructions however many rows there are: correctly rounded arithmetic whatever loop computes
//               it (no exp, no tanh: a vector and the rest beside it may differ), reductions of one row alone, scatters
//
// One list, as both questions are about the same loops. tests/python/test_in_place_reuse.py and test_row_slices.py run
// every entry both ways and compare bits; what is not on the list stays as it was recorded.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stowage::runtime {

enum class InPlace : std::uint8_t { kNo, kByElement, kByRow };

enum class InSlices : std::uint8_t {
  kNo,
  kElements,
  kSum,  // with a factor that must be 1
  kLogSoftmaxBackward,
  kNllBackward,
  kEmbeddingBackward,  // rows of the table: each is the sum of what its index has, in their order
};

struct KernelFacts {
  std::string_view name;
  InPlace in_place = InPlace::kNo;
  InSlices in_slices = InSlices::kNo;
  int dim_argument = -1;  // by row: must be the last dimension
};

// What is not listed may do neither.
const KernelFacts& facts_of(const c10::OperatorHandle& op);
const KernelFacts& facts_named(std::string_view full_name);

// Full names of those listed, sorted.
std::vector<std::string> in_place_reuse_ops();
std::vector<std::string> row_slice_ops();

}  // namespace stowage::runtime
