#include "runtime/torch/tensors.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/torch/torch_versions.h"

namespace stowage::runtime {
namespace {

// With autograd's, though no operator comes to them: a tensor without is taken for one of inference mode, whose version
// some kernels refuse to count on (CUDA's of lists).
c10::DispatchKeySet keys_of(c10::Device device) {
  const c10::DispatchKeySet backend(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
  return backend | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) |
         c10::getAutogradRelatedKeySetFromBackend(backend.highestBackendKey());
}

c10::Storage memoryless_storage(std::int64_t bytes, c10::Device device) {
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes), c10::DataPtr(nullptr, device),
          /*allocator=*/nullptr, /*resizable=*/false};
}

void describe(const at::Tensor& tensor, const TensorMeta& meta) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(meta.sizes, meta.strides, meta.storage_offset);
  if (meta.conjugated) impl->_set_conj(true);
  if (meta.negated) impl->_set_neg(true);
}

}  // namespace

bool is_number_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

at::Tensor make_alias(const c10::Storage& storage, const TensorMeta& meta) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                               keys_of(storage.device()), meta.dtype);
  describe(tensor, meta);
  return tensor;
}

at::Tensor make_tensor(const c10::Storage& storage, const TensorMeta& meta) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys_of(storage.device()), meta.dtype);
  describe(tensor, meta);
  return tensor;
}

c10::Storage shell_storage(std::int64_t bytes, c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes), c10::DataPtr(nullptr, device),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  torch_versions::refuse_reads(*storage.unsafeGetStorageImpl(), kShellText);
  return storage;
}

void fill_shell(const c10::Storage& shell, at::DataPtr&& memory, std::size_t bytes) {
  c10::StorageImpl* storage = shell.unsafeGetStorageImpl();
  torch_versions::allow_reads(*storage);
  storage->set_nbytes(bytes);
  storage->set_data_ptr_noswap(std::move(memory));
}

at::DataPtr become_shell(const c10::Storage& storage) {
  c10::StorageImpl* const shell = storage.unsafeGetStorageImpl();
  at::DataPtr memory = shell->set_data_ptr(c10::DataPtr(nullptr, storage.device()));
  torch_versions::refuse_reads(*shell, kShellText);
  return memory;
}

c10::Storage part_of(const c10::Storage& whole, std::int64_t start_bytes, std::int64_t bytes) {
  if (start_bytes == 0 && bytes == static_cast<std::int64_t>(whole.nbytes())) return whole;
  auto keep = std::make_unique<c10::Storage>(whole);
  void* data = static_cast<char*>(keep->mutable_data()) + start_bytes;
  const auto let_go = [](void* context) { delete static_cast<c10::Storage*>(context); };
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
          c10::DataPtr(data, keep.release(), let_go, whole.device()), /*allocator=*/nullptr, /*resizable=*/false};
}

std::pair<std::int64_t, std::int64_t> span_bytes(const at::Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(tensor.dtype().itemsize());
  const std::int64_t first = tensor.storage_offset() * size;
  if (tensor.numel() == 0) return {first, first};
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {first, (last + 1) * size};
}

at::Tensor make_shell(const TensorMeta& meta, std::int64_t storage_bytes, c10::Device device) {
  return make_alias(memoryless_storage(storage_bytes, device), meta);
}

void become_shell(const at::Tensor& tensor, const TensorMeta& meta, std::int64_t storage_bytes) {
  TORCH_CHECK(tensor.dtype() == meta.dtype, "stowage: a shell needs a tensor of its dtype");
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(memoryless_storage(storage_bytes, tensor.device()));
  impl->set_sizes_and_strides(meta.sizes, meta.strides, meta.storage_offset);
}

}  // namespace stowage::runtime
