// Tensors built from metadata.
#pragma once

#include <c10/core/Storage.h>

#include "runtime/tape.h"

namespace stowage::runtime {

// A tensor over `storage`, as `meta` describes it.
at::Tensor make_alias(const c10::Storage& storage, const TensorMeta& meta);

// A tensor that looks like `meta` but has no memory: for ops that only look at shapes, and for Python that only passes it on.
at::Tensor make_shell(const TensorMeta& meta, std::int64_t storage_bytes);

// Turns `tensor`, made by Python with the right dtype, into such a shell.
void become_shell(const at::Tensor& tensor, const TensorMeta& meta, std::int64_t storage_bytes);

}  // namespace stowage::runtime
