#include "runtime/replay/batch_norm.h"

#include <algorithm>

namespace stowage::runtime {
namespace {

constexpr const char* kForward = "aten::native_batch_norm";
constexpr const char* kBackward = "aten::native_batch_norm_backward";

bool in_training(const TapeOp& op, const char* flag) {
  const auto& arguments = op.handle.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == flag) return op.arguments[i].isBool() && op.arguments[i].toBool();
  }
  return false;
}

bool is_statistics(const TapeOp& op, std::size_t argument) {
  const std::string& name = op.handle.schema().arguments()[argument].name();
  return name == "running_mean" || name == "running_var";
}

bool same_dtype_as_input(const Tape& tape, const TapeOp& op, SlotId statistics) {
  const SlotId input = op.tensors[0].slots[0];
  return tape.slots[input.index()].meta.dtype == tape.slots[statistics.index()].meta.dtype;
}

bool ignores(const TapeOp& op, std::size_t argument) {
  return op.handle.schema().name() == kBackward && op.handle.schema().overload_name().empty() &&
         in_training(op, "train") && is_statistics(op, argument);
}

// Both statistics of an op, or neither: its second run gets none. Returns whether something was dropped.
bool drop_halves(const Tape& tape, std::vector<bool>& updated) {
  bool dropped = false;
  for (const TapeOp& op : tape.ops) {
    std::vector<std::size_t> blocks;
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      if (!updates_on_the_side(op, i) || op.tensors[i].slots.empty() || !op.tensors[i].slots[0].valid()) continue;
      blocks.push_back(tape.slots[op.tensors[i].slots[0].index()].block.index());
    }
    const bool all = std::all_of(blocks.begin(), blocks.end(), [&](std::size_t b) { return updated[b]; });
    for (const std::size_t block : blocks) {
      dropped = dropped || (!all && updated[block]);
      updated[block] = updated[block] && all;
    }
  }
  return dropped;
}

}  // namespace

bool updates_on_the_side(const TapeOp& op, std::size_t argument) {
  return op.handle.schema().name() == kForward && op.handle.schema().overload_name().empty() &&
         in_training(op, "training") && is_statistics(op, argument);
}

std::vector<bool> side_statistics(const Tape& tape) {
  std::vector<bool> updated(tape.blocks.size(), false);
  std::vector<bool> used_otherwise(tape.blocks.size(), false);
  for (const TapeOp& op : tape.ops) {
    if (op.role != TapeOp::Role::kKernel && op.role != TapeOp::Role::kHost) continue;
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      if (access_of(op, i) == Access::kNone) continue;
      for (const SlotId slot : op.tensors[i].slots) {
        if (!slot.valid()) continue;
        const std::size_t block = tape.slots[slot.index()].block.index();
        if (updates_on_the_side(op, i) && tape.blocks[block].external && same_dtype_as_input(tape, op, slot)) {
          updated[block] = true;
        } else if (!ignores(op, i)) {
          used_otherwise[block] = true;
        }
      }
    }
  }
  for (std::size_t b = 0; b < updated.size(); ++b) updated[b] = updated[b] && !used_otherwise[b];
  while (drop_halves(tape, updated)) {
  }
  return updated;
}

}  // namespace stowage::runtime
