#include "runtime/record/tape.h"

#include <algorithm>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {

Access access_of(const TapeOp& op, std::size_t argument) {
  if (op.tensors[argument].kind == TensorRef::Kind::kNone) return Access::kNone;
  if (writes_argument(op.handle, argument)) return Access::kWrite;
  return reads_only_shape(op.handle, argument) ? Access::kNone : Access::kRead;
}

std::vector<bool> touched_blocks(const Tape& tape) {
  std::vector<bool> touched(tape.blocks.size(), false);
  const auto touch = [&](SlotId slot) {
    if (slot.valid()) touched[tape.slots[slot.index()].block.index()] = true;
  };
  for (const TapeOp& op : tape.ops) {
    for (const TensorRef& ref : op.tensors) std::for_each(ref.slots.begin(), ref.slots.end(), touch);
  }
  std::for_each(tape.returned.begin(), tape.returned.end(), touch);
  return touched;
}

void Tape::settle_moved() {
  moved = {};
  const auto add = [&](const GeneratorJump& jump) {
    for (const auto& [part, to] : jump.to)
      if (to.moves()) moved[part] = true;
  };
  add(final_jump);
  for (const TapeOp& op : ops) {
    add(op.jump);
    if (op.draws()) moved[op.drawn_from] = true;
  }
}

std::string name_with_line(const Tape& tape, const TapeOp& op) {
  const std::string line = op.line >= 0 ? " (" + tape.lines[static_cast<std::size_t>(op.line)] + ")" : std::string();
  return full_name(op.handle) + line;
}

}  // namespace stowage::runtime
