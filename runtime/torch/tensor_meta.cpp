#include "runtime/torch/tensor_meta.h"

namespace stowage::runtime {

bool TensorMeta::describes(const at::Tensor& tensor, std::int64_t start_bytes) const {
  const auto size = static_cast<std::int64_t>(dtype.itemsize());
  const bool there = tensor.numel() == 0 || tensor.storage_offset() * size == storage_offset * size + start_bytes;
  return there && tensor.dtype() == dtype && tensor.is_conj() == conjugated && tensor.is_neg() == negated &&
         tensor.sizes() == c10::IntArrayRef(sizes) && tensor.strides() == c10::IntArrayRef(strides);
}

TensorMeta TensorMeta::of(const at::Tensor& tensor, std::int64_t start_bytes) {
  const auto size = static_cast<std::int64_t>(tensor.dtype().itemsize());
  const std::int64_t offset = tensor.numel() == 0 && start_bytes > 0 ? 0 : tensor.storage_offset() - start_bytes / size;
  return {tensor.sizes().vec(), tensor.strides().vec(), offset, tensor.dtype(), tensor.is_conj(), tensor.is_neg()};
}

bool TensorMeta::is_contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t d = sizes.size(); d-- > 0; expected *= sizes[d]) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
  }
  return true;
}

}  // namespace stowage::runtime
