#include "runtime/record/kept_writes.h"

#include <algorithm>

#include "runtime/memory/available.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kAlwaysThere = 1 << 20;  // bytes; for more, the machine is asked

}  // namespace

void KeptWrites::save(const TapeOp& op, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - op.tensors.size();
  for (std::size_t i = 0; i < op.tensors.size() && complete_; ++i) {
    if (op.tensors[i].kind == TensorRef::Kind::kNone || !writes_argument(op.handle, i)) continue;
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) {
      save(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) save(tensor);
    }
  }
}

void KeptWrites::save(const at::Tensor& tensor) {
  if (!complete_ || !tensor.defined() || !tensor.has_storage() || tensor.is_meta()) return;
  if (names_.made_in_step(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  if (holds(storage)) return;
  const auto bytes = static_cast<std::int64_t>(storage.nbytes());
  complete_ = bytes < kAlwaysThere || 4 * bytes < available_bytes("/");
  if (!complete_) return saved_.clear();
  saved_.emplace_back(storage, KeptBytes(storage, Kept::kOnce));
}

bool KeptWrites::holds(const c10::Storage& storage) const {
  return std::any_of(saved_.begin(), saved_.end(), [&](const auto& known) {
    return known.first.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  });
}

void KeptWrites::put_back() {
  for (const auto& [storage, content] : saved_) content.put_back(storage);
  saved_.clear();
}

}  // namespace stowage::runtime
