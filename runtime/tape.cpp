#include "runtime/tape.h"

#include "runtime/op_traits.h"

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

Access access_of(const TapeOp& op, std::size_t argument) {
  if (op.tensors[argument].kind == TensorRef::Kind::kNone) return Access::kNone;
  if (writes_argument(op.handle, argument)) return Access::kWrite;
  return reads_only_shape(op.handle, argument) ? Access::kNone : Access::kRead;
}

std::string name_with_line(const Tape& tape, const TapeOp& op) {
  const std::string line = op.line >= 0 ? " (" + tape.lines[static_cast<std::size_t>(op.line)] + ")" : std::string();
  return full_name(op.handle) + line;
}

std::string full_name(const c10::OperatorHandle& op) {
  const std::string& overload = op.schema().overload_name();
  return overload.empty() ? op.schema().name() : op.schema().name() + "." + overload;
}

}  // namespace stowage::runtime
