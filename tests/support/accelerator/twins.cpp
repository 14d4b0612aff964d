// Twins of device tensors (see twins.h).
#include "twins.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernel_memory.h"
#include "mapping.h"
#include "streams.h"

namespace standin {
namespace {

bool same(const c10::Storage& a, const c10::Storage& b) { return a.unsafeGetStorageImpl() == b.unsafeGetStorageImpl(); }

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor t =
      at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  c10::TensorImpl* const impl = t.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  t._set_conj(like.is_conj());
  t._set_neg(like.is_neg());
  return t;
}

// Of a storage that raises when it is read: its twin does, too. Views of it are fine, as on a GPU, whose views touch no
// bytes.
std::string why_unreadable(const c10::Storage& storage) {
  try {
    static_cast<void>(storage.data());
    return {};
  } catch (const c10::Error& error) {
    return error.msg();
  }
}

// Takes the memory out of a storage that a kernel made or resized.
c10::DataPtr block_of(c10::StorageImpl& cpu) {
  const std::size_t bytes = cpu.nbytes();
  return to_device_block(cpu.set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU))), bytes);
}

}  // namespace

c10::IValue twins_of(const c10::IValue& twins, MadeStorages& made) {
  const auto again = [&](const at::Tensor& t) {
    if (!t.defined() || !t.has_storage()) return t;
    c10::StorageImpl* const of = t.storage().unsafeGetStorageImpl();
    void* const bytes = of->_mutable_data_ptr_no_checks().get();
    if (bytes != nullptr && !in_kernels_view(bytes)) return t;  // the host's: it stays as it is
    c10::Storage& storage = made[of];
    if (!storage) {
      storage = c10::Storage(c10::Storage::use_byte_size_t(), of->nbytes(), {bytes, c10::Device(c10::kCPU)},
                             c10::GetCPUAllocator(), /*resizable=*/true);
    }
    return over(storage, c10::DispatchKey::CPU, t);
  };
  if (twins.isTensor()) return again(twins.toTensor());
  if (twins.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : twins.toTensorVector()) list.push_back(again(t));
    return list;
  }
  if (twins.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : twins.toOptionalTensorVector())
      list.push_back(t.has_value() ? std::optional(again(*t)) : t);
    return list;
  }
  return twins;
}

c10::Storage Twins::to_cpu(const c10::Storage& storage) {
  for (const StoragePair& p : storages_) {
    if (same(p.device, storage)) return p.cpu;
  }
  const std::string refusal = why_unreadable(storage);
  // A view of it asks for no pointer on a GPU, and nobody is told of one here
  void* const bytes = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  c10::DataPtr data(refusal.empty() ? kernels_view(bytes) : nullptr, c10::Device(c10::kCPU));
  c10::Storage cpu(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(),
                   /*resizable=*/true);
  if (!refusal.empty()) cpu.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(refusal);
  storages_.push_back({storage, cpu});
  return cpu;
}

at::Tensor Twins::to_cpu(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != kType) {
    if (tensor.has_storage()) host_.push_back(tensor.storage());
    host_operand_ |= tensor.is_cpu() && tensor.dim() > 0;
    return tensor;
  }
  for (const TensorPair& p : tensors_) {
    if (p.device.is_same(tensor)) return p.cpu;
  }
  at::Tensor cpu = over(to_cpu(tensor.storage()), c10::DispatchKey::CPU, tensor);
  tensors_.push_back({tensor, cpu});
  return cpu;
}

c10::Storage Twins::device_storage(const c10::Storage& cpu) {
  for (const StoragePair& p : storages_) {
    if (same(p.cpu, cpu)) return p.device;
  }
  const std::size_t bytes = cpu.nbytes();
  c10::Storage device(c10::Storage::use_byte_size_t(), bytes, block_of(*cpu.unsafeGetStorageImpl()),
                      c10::GetAllocator(kType), /*resizable=*/true);
  storages_.push_back({device, cpu});
  return device;
}

at::Tensor Twins::to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage()) return tensor;
  for (const TensorPair& p : tensors_) {
    if (p.cpu.is_same(tensor)) return p.device;
  }
  if (std::ranges::any_of(host_, [&](const c10::Storage& s) { return same(s, tensor.storage()); })) return tensor;
  return over(device_storage(tensor.storage()), kKey, tensor);
}

void Twins::settle() {
  for (const StoragePair& p : storages_) {
    c10::StorageImpl& cpu = *p.cpu.unsafeGetStorageImpl();
    c10::StorageImpl& device = *p.device.unsafeGetStorageImpl();
    if (cpu.nbytes() == device.nbytes()) continue;
    device.set_data_ptr_noswap(block_of(cpu));
    device.set_nbytes(cpu.nbytes());
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& [device, cpu] = tensors_[i];
    c10::TensorImpl& impl = *device.unsafeGetTensorImpl();
    const c10::Storage storage = device_storage(cpu.storage());
    if (!same(storage, device.storage())) impl.set_storage_keep_dtype(storage);
    if (cpu.sizes() == device.sizes() && cpu.strides() == device.strides() &&
        cpu.storage_offset() == device.storage_offset()) {
      continue;
    }
    impl.set_storage_offset(cpu.storage_offset());
    impl.set_sizes_and_strides(cpu.sizes(), cpu.strides());
  }
}

}  // namespace standin
