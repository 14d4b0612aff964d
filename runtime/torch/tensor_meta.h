// What a tensor is, but for its bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace stowage::runtime {

struct TensorMeta {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t storage_offset = 0;  // from the beginning of its block
  caffe2::TypeMeta dtype;
  bool conjugated = false;  // lazily: the bytes are those of the conjugate
  bool negated = false;

  bool operator==(const TensorMeta&) const = default;

  // Elements lie one after the other, the last dimension's first.
  [[nodiscard]] bool is_contiguous() const;

  // Of a tensor whose block begins so many bytes into its storage.
  [[nodiscard]] bool describes(const at::Tensor& tensor, std::int64_t start_bytes = 0) const;
  static TensorMeta of(const at::Tensor& tensor, std::int64_t start_bytes = 0);
};

}  // namespace stowage::runtime
