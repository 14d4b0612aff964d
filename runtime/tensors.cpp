#include "runtime/tensors.h"

namespace stowage::runtime {
namespace {

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

c10::Storage memoryless_storage(std::int64_t bytes) {
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
          c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)), /*allocator=*/nullptr, /*resizable=*/false};
}

}  // namespace

at::Tensor make_alias(const c10::Storage& storage, const TensorMeta& meta) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), kCpu, meta.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, meta.storage_offset);
  return tensor;
}

at::Tensor make_shell(const TensorMeta& meta, std::int64_t storage_bytes) {
  return make_alias(memoryless_storage(storage_bytes), meta);
}

void become_shell(const at::Tensor& tensor, const TensorMeta& meta, std::int64_t storage_bytes) {
  TORCH_CHECK(tensor.dtype() == meta.dtype, "stowage: a shell needs a tensor of its dtype");
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(memoryless_storage(storage_bytes));
  impl->set_sizes_and_strides(meta.sizes, meta.strides, meta.storage_offset);
}

}  // namespace stowage::runtime
