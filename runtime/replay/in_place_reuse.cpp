#include "runtime/replay/in_place_reuse.h"

#include <algorithm>

#include "runtime/replay/kernel_table.h"

namespace stowage::runtime {
namespace {

bool by_row_over_last_dimension(const TapeOp& op, const TensorMeta& meta, const KernelFacts& facts) {
  const auto at = static_cast<std::size_t>(facts.dim_argument);
  if (facts.in_place != InPlace::kByRow || !op.arguments[at].isInt()) return false;
  const std::int64_t dim = op.arguments[at].toInt();
  const auto dims = static_cast<std::int64_t>(meta.sizes.size());
  return dims > 0 && (dim == -1 || dim == dims - 1) && meta.is_contiguous();
}

// An accelerator's kernels over rows are its own: one may read a row again after it has written to it.
bool is_listed(const TapeOp& op, const TensorMeta& result, c10::Device device) {
  const KernelFacts& facts = facts_of(op.handle);
  return facts.in_place == InPlace::kByElement || (device.is_cpu() && by_row_over_last_dimension(op, result, facts));
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

}  // namespace stowage::runtime
