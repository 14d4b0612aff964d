// Tensors built from metadata, and those that stand for numbers.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <optional>
#include <utility>
#include <vector>

#include "runtime/torch/tensor_meta.h"

namespace stowage::runtime {

// A number as Python gives it: a tensor that an operator makes of it by itself.
bool is_number_tensor(const c10::IValue& value);

// A tensor over `storage`, as `meta` describes it.
at::Tensor make_alias(const c10::Storage& storage, const TensorMeta& meta);

// `bytes` of a storage from `start_bytes` on, as a storage of its own over the same memory, which it keeps.
c10::Storage part_of(const c10::Storage& whole, std::int64_t start_bytes, std::int64_t bytes);

// The first byte in its storage that a tensor looks at, and the one after the last.
std::pair<std::int64_t, std::int64_t> span_bytes(const at::Tensor& tensor);

// A tensor that looks like `meta` but has no memory: for ops that only look at shapes.
at::Tensor make_shell(const TensorMeta& meta, std::int64_t storage_bytes, c10::Device device);

// A storage for tensors that Python and autograd pass on before their content exists. Reading it is an error with this
// text in it.
inline constexpr const char* kShellText = "stowage: this tensor of a planned step has no content yet";
c10::Storage shell_storage(std::int64_t bytes, c10::Device device);

// Of each block, the shell storage that was made for it. Weak: autograd adds gradients up in place where nobody else
// holds them, and whoever only watches must not count. (A weak reference keeps the address from being used again.)
using Shell = c10::weak_intrusive_ptr<c10::StorageImpl>;
using Shells = std::vector<std::optional<Shell>>;
inline bool is_held(const std::optional<Shell>& shell) { return shell.has_value() && shell->use_count() > 0; }
inline Shell watched(const c10::Storage& storage) {
  return Shell(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
}

// Its content has come: from now on a storage like any other.
void fill_shell(const c10::Storage& shell, at::DataPtr&& memory, std::size_t bytes);

// A storage that Python has becomes one: its memory.
at::DataPtr become_shell(const c10::Storage& storage);

// A tensor over `storage` that autograd may work with.
at::Tensor make_tensor(const c10::Storage& storage, const TensorMeta& meta);

// Turns `tensor`, made by Python with the right dtype, into such a shell.
void become_shell(const at::Tensor& tensor, const TensorMeta& meta, std::int64_t storage_bytes);

}  // namespace stowage::runtime
