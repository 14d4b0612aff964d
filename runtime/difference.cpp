// Do two recordings of a step hold the same program?
#include <algorithm>
#include <cstring>

#include "runtime/tape.h"

namespace stowage::runtime {
namespace {

std::string at_op(const Tape& tape, std::size_t index, const std::string& what) {
  const TapeOp& op = tape.ops[index];
  const std::string line = op.line >= 0 ? tape.lines[static_cast<std::size_t>(op.line)] + ": " : std::string();
  return line + full_name(op.handle) + " " + what;
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() != b.isTensor()) return false;
  if (!a.isTensor()) return a == b;
  if (a.toTensor().defined() != b.toTensor().defined()) return false;
  if (!a.toTensor().defined()) return true;
  const at::Tensor x = a.toTensor();  // numbers that Python made into tensors
  const at::Tensor y = b.toTensor();
  return x.dtype() == y.dtype() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.element_size()) == 0;
}

bool same_slot(const Tape& a, const Tape& b, SlotId x, SlotId y) {
  if (x.valid() != y.valid()) return false;
  if (!x.valid()) return true;
  const Slot& s = a.slots[x.index()];
  const Slot& t = b.slots[y.index()];
  const Block& p = a.blocks[s.block.index()];
  const Block& q = b.blocks[t.block.index()];
  const bool same_block = p.external == q.external && p.bytes == q.bytes && p.input == q.input &&
                          (p.external ? p.tensor.is_same(q.tensor) || p.kind == BufferKind::kConstant : p.creator == q.creator);
  return same_block && s.meta.sizes == t.meta.sizes && s.meta.strides == t.meta.strides &&
         s.meta.storage_offset == t.meta.storage_offset && s.meta.dtype == t.meta.dtype;
}

bool same_bytes(const Block& p, const Block& q) {
  if (!p.tensor.defined() || !q.tensor.defined()) return p.tensor.defined() == q.tensor.defined();
  const c10::Storage& a = p.tensor.storage();
  const c10::Storage& b = q.tensor.storage();
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

}  // namespace

std::string difference(const Tape& a, const Tape& b) {
  for (std::size_t i = 0; i < std::min(a.ops.size(), b.ops.size()); ++i) {
    const TapeOp& x = a.ops[i];
    const TapeOp& y = b.ops[i];
    if (!(x.handle == y.handle)) return at_op(b, i, "runs where " + full_name(x.handle) + " was recorded");
    if (x.restore != y.restore || x.grad_mode != y.grad_mode) return at_op(b, i, "runs with another generator state or grad mode");
    for (std::size_t k = 0; k < x.tensors.size(); ++k) {
      if (x.tensors[k].slots.size() != y.tensors[k].slots.size()) return at_op(b, i, "gets another number of tensors");
      for (std::size_t s = 0; s < x.tensors[k].slots.size(); ++s) {
        if (!same_slot(a, b, x.tensors[k].slots[s], y.tensors[k].slots[s])) return at_op(b, i, "gets another tensor");
      }
      // Numbers of an optimizer section change from step to step by right; the matcher refreshes them.
      if (x.section < 0 && !same_value(x.arguments[k], y.arguments[k])) return at_op(b, i, "gets another number");
    }
  }
  if (a.ops.size() != b.ops.size()) return "the step now has " + std::to_string(b.ops.size()) + " operations, " + std::to_string(a.ops.size()) + " were recorded";
  if (a.blocks.size() != b.blocks.size()) return "the step now sees other tensors";
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    const bool constants = a.blocks[i].external && a.blocks[i].kind == BufferKind::kConstant && !a.blocks[i].refreshed;
    if (constants && !same_bytes(a.blocks[i], b.blocks[i])) return "a constant made by the step's Python has another value";
  }
  return {};
}

}  // namespace stowage::runtime
