#include "runtime/tape.h"

#include "runtime/op_traits.h"

namespace stowage::runtime {

bool TensorMeta::describes(const at::Tensor& tensor) const {
  return tensor.storage_offset() == storage_offset && tensor.dtype() == dtype &&
         tensor.sizes() == c10::IntArrayRef(sizes) && tensor.strides() == c10::IntArrayRef(strides);
}

TensorMeta TensorMeta::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.dtype()};
}

Access access_of(const TapeOp& op, std::size_t argument) {
  if (op.tensors[argument].kind == TensorRef::Kind::kNone) return Access::kNone;
  if (writes_argument(op.handle, argument)) return Access::kWrite;
  return reads_only_shape(op.handle, argument) ? Access::kNone : Access::kRead;
}

std::string full_name(const c10::OperatorHandle& op) {
  const std::string& overload = op.schema().overload_name();
  return overload.empty() ? op.schema().name() : op.schema().name() + "." + overload;
}

}  // namespace stowage::runtime
