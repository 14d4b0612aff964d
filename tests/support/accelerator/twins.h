// Twins: for one call of a kernel, CPU tensors over the bytes of device tensors.
//
//   device tensor ──► storage A ─┐                 ┌─ twin of storage A ◄── CPU twin tensor       same sizes, strides
//   a view of it  ──► storage A ─┴── same bytes ───┴─ twin of storage A ◄── CPU twin of the view  what aliased, aliases
//
//   1. to_cpu()     arguments: device tensors become twins; host tensors stay
//   2. the CPU kernel runs
//   3. settle()     arguments that it resized, reshaped or gave other storages: the device tensors follow
//   4. to_device()  results: a twin becomes its device tensor again, a new CPU tensor a device tensor over its block
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace standin {

// Twins as they are now, in tensors and storages of their own over the same bytes: a kernel may resize those. `made`: by the
// storage that they stand for.
using MadeStorages = std::map<const c10::StorageImpl*, c10::Storage>;
c10::IValue twins_of(const c10::IValue& twins, MadeStorages& made);

template <class Visit>
void for_each_result(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
}

class Twins {
 public:
  at::Tensor to_cpu(const at::Tensor& tensor);
  c10::Storage to_cpu(const c10::Storage& storage);
  void settle();
  at::Tensor to_device(const at::Tensor& tensor);

  [[nodiscard]] bool any_device() const { return !tensors_.empty(); }
  [[nodiscard]] bool any_host_operand() const { return host_operand_; }  // that is no scalar

 private:
  struct StoragePair {
    c10::Storage device, cpu;
  };
  struct TensorPair {
    at::Tensor device, cpu;
  };
  c10::Storage device_storage(const c10::Storage& cpu);

  std::vector<StoragePair> storages_;
  std::vector<TensorPair> tensors_;
  std::vector<c10::Storage> host_;  // of arguments that lie on the host
  bool host_operand_ = false;
};

}  // namespace standin
