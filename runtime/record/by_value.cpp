#include "runtime/record/by_value.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "runtime/memory/bytes.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

using Role = TapeOp::Role;

class ByValue {
 public:
  ByValue(Tape& tape, const std::set<BlockId>& anew, const std::set<BlockId>& constants,
          const std::set<const c10::StorageImpl*>& stay)
      : tape_(tape), anew_(anew), constants_(constants) {
    find_only_read(stay);
  }

  std::set<BlockId> run() {
    for (TapeOp& op : tape_.ops) {
      if (!takes(op)) continue;
      for (TensorRef& ref : op.tensors) {
        for (SlotId& slot : ref.slots) {
          if (slot.valid() && is_taken(slot)) slot = only_views(op) ? shape_of(slot) : copy_of(slot);
        }
      }
    }
    std::set<BlockId> whole = blocks_in_use();
    for (std::size_t i = 0; i < found_; ++i) {
      if (tape_.blocks[i].only_read && tape_.blocks[i].found && !whole.contains(BlockId(i))) forget(tape_.blocks[i]);
    }
    std::erase_if(whole, [&](BlockId block) { return !anew_.contains(block); });
    return whole;
  }

 private:
  // Of the optimizers' sections Python runs again beside the plan: there a tensor is itself.
  static bool takes(const TapeOp& op) {
    return op.section < 0 && (op.role == Role::kKernel || op.role == Role::kView) && !op.lifted_copy &&
           !lifts_host_data(op.handle) && !changes_metadata(op.handle);
  }

  // Nobody reads what it is given, but what it gives.
  static bool only_views(const TapeOp& op) { return op.role == Role::kView && !tells_value(op.handle); }

  // Blocks that no op writes to, that need not stay the same, that the step does not hand out, and that Python does not
  // look into past the dispatcher.
  void find_only_read(const std::set<const c10::StorageImpl*>& stay) {
    for (std::size_t i = 0; i < tape_.blocks.size(); ++i) {
      Block& block = tape_.blocks[i];
      block.only_read = block.external && (block.found || constants_.contains(BlockId(i))) && block.tensor.defined() &&
                        block.tensor.has_storage() && !stay.contains(block.tensor.storage().unsafeGetStorageImpl());
    }
    const auto not_this = [&](SlotId slot) {
      if (slot.valid()) tape_.blocks[tape_.slots[slot.index()].block.index()].only_read = false;
    };
    for (const TapeOp& op : tape_.ops) {
      for_each_access(tape_, op, [&](BlockId block, Access access) {
        if (access == Access::kWrite) tape_.blocks[block.index()].only_read = false;
      });
    }
    for (const SlotId slot : tape_.returned) not_this(slot);
    for (const DataGuard& guard : tape_.data_guards) not_this(guard.tensor);
  }

  [[nodiscard]] bool is_taken(SlotId id) const {
    const Slot& slot = tape_.slots[id.index()];
    const Block& block = tape_.blocks[slot.block.index()];
    if (!block.only_read) return false;
    return anew_.contains(slot.block) || constants_.contains(slot.block) || bytes_of_view(slot.meta) < block.bytes;
  }

  static std::int64_t bytes_of_view(const TensorMeta& meta) {
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < meta.sizes.size(); ++d) {
      if (meta.sizes[d] == 0) return 0;
      elements += (meta.sizes[d] - 1) * meta.strides[d];
    }
    return elements * static_cast<std::int64_t>(meta.dtype.itemsize());
  }

  SlotId copy_of(SlotId id) {
    const Slot& from = tape_.slots[id.index()];
    const c10::Storage& whole = tape_.blocks[from.block.index()].tensor.storage();
    const c10::Storage memory = memory_of(bytes_of_view(from.meta), whole.device());
    const AtHand there(whole);
    copy_part(whole, from.meta.storage_offset * static_cast<std::int64_t>(from.meta.dtype.itemsize()), memory);
    return stands_for(id, memory);
  }

  SlotId shape_of(SlotId id) {
    return stands_for(id, memory_of(0, tape_.blocks[tape_.slots[id.index()].block.index()].device));
  }

  static c10::Storage memory_of(std::int64_t bytes, c10::Device device) {
    return at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)).storage();
  }

  SlotId stands_for(SlotId id, const c10::Storage& memory) {
    const Slot& from = tape_.slots[id.index()];
    const Block& whole = tape_.blocks[from.block.index()];
    Block block;
    block.bytes = static_cast<std::int64_t>(memory.nbytes());
    block.device = whole.device;
    block.kind = BufferKind::kConstant;
    block.external = block.of_python = block.by_value = true;
    block.name = whole.name;
    Slot slot{Slot::Origin::kExternal, BlockId(tape_.blocks.size()), from.meta};
    slot.meta.storage_offset = 0;
    block.tensor = make_alias(memory, slot.meta);
    block.owner = SlotId(tape_.slots.size());
    tape_.blocks.push_back(std::move(block));
    tape_.slots.push_back(std::move(slot));
    return tape_.blocks.back().owner;
  }

  [[nodiscard]] std::set<BlockId> blocks_in_use() const {
    std::set<BlockId> used;
    const auto add = [&](SlotId slot) {
      if (slot.valid()) used.insert(tape_.slots[slot.index()].block);
    };
    for (const TapeOp& op : tape_.ops) {
      for (const TensorRef& ref : op.tensors) std::for_each(ref.slots.begin(), ref.slots.end(), add);
    }
    std::for_each(tape_.returned.begin(), tape_.returned.end(), add);
    return used;
  }

  // The tape does not keep what it needs no more.
  static void forget(Block& block) {
    block.bytes = 0;
    block.tensor = at::empty({0}, block.tensor.options());
  }

  Tape& tape_;
  const std::set<BlockId>& anew_;
  const std::set<BlockId>& constants_;
  const std::size_t found_ = tape_.blocks.size();
};

}  // namespace

std::set<BlockId> take_by_value(Tape& tape, const std::set<BlockId>& anew, const std::set<BlockId>& constants,
                                const std::set<const c10::StorageImpl*>& stay) {
  return ByValue(tape, anew, constants, stay).run();
}

}  // namespace stowage::runtime
