#include "runtime/record/tape.h"

#include <algorithm>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {

Access access_of(const TapeOp& op, std::size_t argument) {
  if (op.tensors[argument].kind == TensorRef::Kind::kNone) return Access::kNone;
  if (writes_argument(op.handle, argument)) return Access::kWrite;
  return reads_only_shape(op.handle, argument) ? Access::kNone : Access::kRead;
}

bool Tape::moves_generator() const {
  if (drawing_ops > 0 || final_jump.moves()) return true;
  return random_ops > 0 && std::any_of(ops.begin(), ops.end(), [](const TapeOp& op) { return op.jump.moves(); });
}

std::string name_with_line(const Tape& tape, const TapeOp& op) {
  const std::string line = op.line >= 0 ? " (" + tape.lines[static_cast<std::size_t>(op.line)] + ")" : std::string();
  return full_name(op.handle) + line;
}

}  // namespace stowage::runtime
