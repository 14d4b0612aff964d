#include "runtime/replay/in_place_reuse.h"
#include "runtime/torch/op_facts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace stowage::runtime {
namespace {

// One loop over the elements (TensorIterator, or a vector library called with equal offsets), or a few such loops in a
// row of which only the first reads the inputs.
constexpr std::array kByElement = std::to_array<std::string_view>({
    // of one tensor
    "aten::abs",
    "aten::bitwise_not",
    "aten::ceil",
    "aten::clamp",
    "aten::clamp_max",
    "aten::clamp_min",
    "aten::cos",
    "aten::elu",
    "aten::erf",
    "aten::erfc",
    "aten::exp",
    "aten::exp2",
    "aten::expm1",
    "aten::floor",
    "aten::gelu",
    "aten::hardsigmoid",
    "aten::hardswish",
    "aten::hardtanh",
    "aten::leaky_relu",
    "aten::log",
    "aten::log10",
    "aten::log1p",
    "aten::log2",
    "aten::logical_not",
    "aten::mish",
    "aten::neg",
    "aten::reciprocal",
    "aten::relu",
    "aten::round",
    "aten::rsqrt",
    "aten::sgn",
    "aten::sigmoid",
    "aten::sign",
    "aten::silu",
    "aten::sin",
    "aten::softplus",
    "aten::sqrt",
    "aten::tan",
    "aten::tanh",
    "aten::threshold",
    "aten::trunc",
    // of two or three; the others may be broadcast
    "aten::add.Scalar",
    "aten::add.Tensor",
    "aten::addcdiv",
    "aten::addcmul",
    "aten::bitwise_and.Tensor",
    "aten::bitwise_or.Tensor",
    "aten::clamp.Tensor",
    "aten::div.Scalar",
    "aten::div.Tensor",
    "aten::div.Tensor_mode",
    "aten::lerp.Scalar",
    "aten::lerp.Tensor",
    "aten::logical_and",
    "aten::logical_or",
    "aten::maximum",
    "aten::minimum",
    "aten::mul.Scalar",
    "aten::mul.Tensor",
    "aten::pow.Scalar",
    "aten::pow.Tensor_Scalar",
    "aten::pow.Tensor_Tensor",
    "aten::rsub.Scalar",
    "aten::rsub.Tensor",
    "aten::sub.Scalar",
    "aten::sub.Tensor",
    "aten::where.self",
    // backward of activations
    "aten::elu_backward",
    "aten::gelu_backward",
    "aten::hardsigmoid_backward",
    "aten::hardswish_backward",
    "aten::hardtanh_backward",
    "aten::leaky_relu_backward",
    "aten::mish_backward",
    "aten::sigmoid_backward",
    "aten::silu_backward",
    "aten::softplus_backward",
    "aten::tanh_backward",
    "aten::threshold_backward",
    // dropout: a mask, then products
    "aten::native_dropout",
    "aten::native_dropout_backward",
    // of optimizers, one element of the lists at a time
    "aten::_foreach_add.List",
    "aten::_foreach_add.Scalar",
    "aten::_foreach_div.List",
    "aten::_foreach_div.Scalar",
    "aten::_foreach_mul.List",
    "aten::_foreach_mul.Scalar",
    "aten::_foreach_neg",
    "aten::_foreach_reciprocal",
    "aten::_foreach_sqrt",
    "aten::_foreach_sub.List",
    "aten::_foreach_sub.Scalar",
});

// Over the last dimension, contiguous: each row is reduced, then mapped element by element.
struct RowOp {
  std::string_view name;
  std::size_t dim_argument;
};
constexpr std::array kByRow = {RowOp{"aten::_log_softmax", 1}, RowOp{"aten::_log_softmax_backward_data", 2},
                               RowOp{"aten::_softmax", 1}, RowOp{"aten::_softmax_backward_data", 2}};

bool by_row_over_last_dimension(const TapeOp& op, const TensorMeta& meta, const std::string& name) {
  const auto* row = std::find_if(kByRow.begin(), kByRow.end(), [&](const RowOp& r) { return r.name == name; });
  if (row == kByRow.end() || !op.arguments[row->dim_argument].isInt()) return false;
  const std::int64_t dim = op.arguments[row->dim_argument].toInt();
  const auto dims = static_cast<std::int64_t>(meta.sizes.size());
  return dims > 0 && (dim == -1 || dim == dims - 1) && meta.is_contiguous();
}

// An accelerator's kernels over rows are its own: one may read a row again after it has written to it.
bool is_listed(const TapeOp& op, const TensorMeta& result, c10::Device device) {
  const std::string name = full_name(op.handle);
  return std::find(kByElement.begin(), kByElement.end(), name) != kByElement.end() ||
         (device.is_cpu() && by_row_over_last_dimension(op, result, name));
}

// Strides of dimensions of size 1 mean nothing.
bool same_places(const TensorMeta& a, const TensorMeta& b) {
  if (a.dtype != b.dtype || a.sizes != b.sizes || a.storage_offset != b.storage_offset) return false;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

// The tensor lies over its whole block, each element once.
bool fills(const TensorMeta& meta, const Block& block) {
  std::int64_t bytes = static_cast<std::int64_t>(meta.dtype.itemsize());
  for (const std::int64_t size : meta.sizes) bytes *= size;
  return meta.storage_offset == 0 && bytes > 0 && bytes == block.bytes;
}

// The only way in which the op looks at each block that it reads; nothing for blocks that it touches in several.
class Looks {
 public:
  Looks(const Tape& tape, const TapeOp& op) {
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      const Access access = access_of(op, i);
      if (access == Access::kNone) continue;
      for (const SlotId slot : op.tensors[i].slots) {
        if (slot.valid()) add(tape.slots[slot.index()], access);
      }
    }
  }

  struct Look {
    BlockId block;
    const TensorMeta* meta;  // nullptr: several, or written
  };
  [[nodiscard]] const std::vector<Look>& all() const { return looks_; }

 private:
  void add(const Slot& slot, Access access) {
    const auto it = std::find_if(looks_.begin(), looks_.end(), [&](const Look& l) { return l.block == slot.block; });
    if (it == looks_.end()) {
      looks_.push_back({slot.block, access == Access::kRead ? &slot.meta : nullptr});
    } else if (access != Access::kRead || it->meta == nullptr || !same_places(*it->meta, slot.meta)) {
      it->meta = nullptr;
    }
  }

  std::vector<Look> looks_;
};

}  // namespace

std::vector<std::pair<BlockId, BlockId>> in_place_reuse_blocks(const Tape& tape, const TapeOp& op) {
  std::vector<std::pair<BlockId, BlockId>> pairs;
  if (op.creates.empty()) return pairs;
  const bool lists =
      std::any_of(op.tensors.begin(), op.tensors.end(), [](const TensorRef& ref) { return ref.slots.size() > 1; });
  if (lists) return pairs;
  const Looks looks(tape, op);
  for (const BlockId created : op.creates) {
    const Block& result = tape.blocks[created.index()];
    const TensorMeta& meta = tape.slots[result.owner.index()].meta;
    if (result.device != tape.device || !fills(meta, result) || !is_listed(op, meta, tape.device)) continue;
    for (const Looks::Look& look : looks.all()) {
      const Block& input = tape.blocks[look.block.index()];
      if (look.meta == nullptr || input.external || input.device != tape.device || input.bytes != result.bytes)
        continue;
      if (same_places(*look.meta, meta)) pairs.emplace_back(look.block, created);
    }
  }
  return pairs;
}

std::vector<std::string> in_place_reuse_ops() {
  std::vector<std::string> names(kByElement.begin(), kByElement.end());
  for (const RowOp& row : kByRow) names.emplace_back(row.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace stowage::runtime
