// Tensors cross into C++ as the address of their TensorImpl (torch.Tensor._cdata), so that nothing links
// libtorch_python.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

using Address = std::uintptr_t;

inline at::Tensor tensor_at(Address address) {
  if (address == 0) return {};
  auto* impl = reinterpret_cast<c10::TensorImpl*>(address);
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

inline std::vector<at::Tensor> tensors_at(const std::vector<Address>& addresses) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(addresses.size());
  for (const Address address : addresses) tensors.push_back(tensor_at(address));
  return tensors;
}
