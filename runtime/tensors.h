// Tensors built from metadata.
#pragma once

#include <c10/core/Storage.h>

#include <utility>

#include "runtime/tape.h"

namespace stowage::runtime {

// A tensor over `storage`, as `meta` describes it.
at::Tensor make_alias(const c10::Storage& storage, const TensorMeta& meta);

// `bytes` of a storage from `start_bytes` on, as a storage of its own over the same memory, which it keeps.
c10::Storage part_of(const c10::Storage& whole, std::int64_t start_bytes, std::int64_t bytes);

// The first byte in its storage that a tensor looks at, and the one after the last.
std::pair<std::int64_t, std::int64_t> span_bytes(const at::Tensor& tensor);

// A tensor that looks like `meta` but has no memory: for ops that only look at shapes, and for Python that only passes it on.
at::Tensor make_shell(const TensorMeta& meta, std::int64_t storage_bytes);

// Turns `tensor`, made by Python with the right dtype, into such a shell.
void become_shell(const at::Tensor& tensor, const TensorMeta& meta, std::int64_t storage_bytes);

}  // namespace stowage::runtime
