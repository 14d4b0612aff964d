// Do two recordings of a step hold the same program?
#include <algorithm>
#include <cstring>

#include "runtime/memory/bytes.h"
#include "runtime/record/tape.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

std::string at_op(const Tape& tape, std::size_t index, const std::string& what) {
  const TapeOp& op = tape.ops[index];
  const std::string line = op.line >= 0 ? tape.lines[static_cast<std::size_t>(op.line)] + ": " : std::string();
  return line + full_name(op.handle) + " " + what;
}

const KernelSettings& settings_of(const Tape& tape, const TapeOp& op) {
  return tape.settings[static_cast<std::size_t>(op.settings)];
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() != b.isTensor()) return false;
  if (!a.isTensor()) return a == b;
  if (a.toTensor().defined() != b.toTensor().defined()) return false;
  if (!a.toTensor().defined()) return true;
  const at::Tensor x = a.toTensor();  // numbers that Python made into tensors; sparse ones
  const at::Tensor y = b.toTensor();
  if (is_sparse(x) || is_sparse(y)) return is_sparse(x) && is_sparse(y) && of_one_form(x, y);
  return x.dtype() == y.dtype() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.element_size()) == 0;
}

// Generators are told by what they are to the step.
bool same_argument(const TapeOp& x, const TapeOp& y, std::size_t k) {
  if (x.arguments[k].isGenerator() && y.arguments[k].isGenerator()) return x.drawn_from == y.drawn_from;
  return same_value(x.arguments[k], y.arguments[k]);
}

// May the op be given the other's number there, and be the same op? A view is what it gives.
bool may_vary(const TapeOp& op, const TapeOp& other, std::size_t argument) {
  if (op.role == TapeOp::Role::kView && !tells_value(op.handle)) return true;
  const c10::IValue& x = op.arguments[argument];
  const c10::IValue& y = other.arguments[argument];
  const bool tensors = is_number_tensor(x) && is_number_tensor(y) && x.toTensor().dtype() == y.toTensor().dtype();
  return static_cast<int>(argument) != op.fixed_number && !is_sparse(x) && takes_number(op.handle, argument) &&
         (tensors || same_kind_of_number(x, y) || (x.isNone() && y.isNone()));
}

bool same_memory(const at::Tensor& x, const at::Tensor& y) {
  return x.defined() == y.defined() && (!x.defined() || x.storage().is_alias_of(y.storage()));
}

// `views_move`: where in its block a view lies is a number of Python's.
bool same_slot(const Tape& a, const Tape& b, SlotId x, SlotId y, bool views_move) {
  if (x.valid() != y.valid()) return false;
  if (!x.valid()) return true;
  const Slot& s = a.slots[x.index()];
  const Slot& t = b.slots[y.index()];
  const Block& p = a.blocks[s.block.index()];
  const Block& q = b.blocks[t.block.index()];
  const bool same_block =
      p.external == q.external && p.bytes == q.bytes && p.input == q.input && p.of_python == q.of_python &&
      p.by_value == q.by_value && p.shared == q.shared && p.device == q.device &&
      (p.external ? same_memory(p.tensor, q.tensor) || p.kind == BufferKind::kConstant : p.creator == q.creator);
  const bool moves = views_move && s.origin == Slot::Origin::kAlias && t.origin == Slot::Origin::kAlias;
  return same_block && s.meta.sizes == t.meta.sizes && s.meta.strides == t.meta.strides &&
         (moves || s.meta.storage_offset == t.meta.storage_offset) && s.meta.dtype == t.meta.dtype;
}

// Of results, also where nothing uses them.
bool same_forms(const Tape& a, const Tape& b, const std::vector<TensorRef>& x, const std::vector<TensorRef>& y) {
  const auto same = [&](SlotId p, SlotId q) {
    if (!p.valid() || !q.valid()) return p.valid() == q.valid();
    const TensorMeta& here = a.slots[p.index()].meta;
    const TensorMeta& there = b.slots[q.index()].meta;
    return here.sizes == there.sizes && here.strides == there.strides && here.dtype == there.dtype;
  };
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [&](const TensorRef& p, const TensorRef& q) {
    return std::equal(p.slots.begin(), p.slots.end(), q.slots.begin(), q.slots.end(), same);
  });
}

bool same_constant(const Block& p, const Block& q) {
  if (!p.tensor.defined() || !q.tensor.defined()) return p.tensor.defined() == q.tensor.defined();
  return same_bytes(p.tensor.storage(), q.tensor.storage());
}

// Of two tapes with the same ops: those that an op looks at. (What the step can reach beside them does not matter: lists
// that grow from call to call.)
bool same_constants(const Tape& a, const Tape& b) {
  std::vector<bool> compared(a.blocks.size(), false);
  const auto same = [&](SlotId x, SlotId y) {
    if (!x.valid() || !y.valid()) return true;
    const BlockId block = a.slots[x.index()].block;
    const Block& p = a.blocks[block.index()];
    if (!p.external || p.kind != BufferKind::kConstant || p.refreshed || compared[block.index()]) return true;
    compared[block.index()] = true;
    return same_constant(p, b.blocks[b.slots[y.index()].block.index()]);
  };
  for (std::size_t i = 0; i < a.ops.size(); ++i) {
    for (std::size_t k = 0; k < a.ops[i].tensors.size(); ++k) {
      const auto& x = a.ops[i].tensors[k].slots;
      if (!std::equal(x.begin(), x.end(), b.ops[i].tensors[k].slots.begin(), same)) return false;
    }
  }
  return true;
}

// Whether two blocks of two tapes are one and the same, in as far as it shows at their first use.
bool may_be_same(const Block& p, const Block& q) {
  if (p.external != q.external || p.bytes != q.bytes || p.input != q.input || p.device != q.device) return false;
  if (p.of_python != q.of_python || p.by_value != q.by_value || p.shared != q.shared) return false;
  if (!p.external || p.input >= 0 || p.of_python) return true;
  return p.tensor.defined() && q.tensor.defined() && p.tensor.storage().is_alias_of(q.tensor.storage());
}

// Pairs the blocks of two tapes as their ops name them, one with one.
class Pairs {
 public:
  Pairs(const Tape& a, const Tape& b, std::vector<BlockId>& of_a) : a_(a), b_(b), of_a_(of_a), of_b_(b.blocks.size()) {}

  bool pair(BlockId p, BlockId q) {
    if (of_a_[p.index()].valid() || of_b_[q.index()].valid()) return of_a_[p.index()] == q;
    if (!may_be_same(a_.blocks[p.index()], b_.blocks[q.index()])) return false;
    of_a_[p.index()] = q;
    of_b_[q.index()] = p;
    return true;
  }
  bool pair(const std::vector<TensorRef>& x, const std::vector<TensorRef>& y) {
    if (x.size() != y.size()) return false;
    for (std::size_t k = 0; k < x.size(); ++k) {
      if (x[k].kind != y[k].kind || x[k].slots.size() != y[k].slots.size()) return false;
      for (std::size_t s = 0; s < x[k].slots.size(); ++s) {
        if (!pair(x[k].slots[s], y[k].slots[s])) return false;
      }
    }
    return true;
  }

 private:
  bool pair(SlotId x, SlotId y) {
    if (!x.valid() || !y.valid()) return x.valid() == y.valid();
    const Slot& s = a_.slots[x.index()];
    const Slot& t = b_.slots[y.index()];
    TensorMeta here = s.meta;
    if (s.origin == Slot::Origin::kAlias && t.origin == Slot::Origin::kAlias)
      here.storage_offset = t.meta.storage_offset;  // views may move
    return here == t.meta && pair(s.block, t.block);
  }

  const Tape& a_;
  const Tape& b_;
  std::vector<BlockId>& of_a_;
  std::vector<BlockId> of_b_;
};

}  // namespace

bool same_beginning(const Tape& a, const Tape& b, std::size_t ops, std::vector<BlockId>& now_called) {
  if (b.ops.size() < ops) return false;
  Pairs pairs(a, b, now_called);
  for (std::size_t i = 0; i < ops; ++i) {
    const TapeOp& x = a.ops[i];
    const TapeOp& y = b.ops[i];
    if (!(x.handle == y.handle) || x.role != y.role || !x.jump.same_but_seed(y.jump) || x.grad_mode != y.grad_mode ||
        settings_of(a, x) != settings_of(b, y))
      return false;
    if (!pairs.pair(x.tensors, y.tensors) || !pairs.pair(x.results, y.results)) return false;
    for (std::size_t k = 0; k < x.arguments.size(); ++k) {
      if (x.tensors[k].kind == TensorRef::Kind::kNone && !(may_vary(x, y, k) && may_vary(y, x, k)) &&
          !same_argument(x, y, k))
        return false;
    }
  }
  return true;
}

bool draws_alike(const Tape& tape, const TapeOp& a, const TapeOp& b) {
  if (!(a.handle == b.handle)) return false;
  for (std::size_t k = 0; k < a.arguments.size(); ++k) {
    if (a.tensors[k].kind != b.tensors[k].kind || a.tensors[k].slots.size() != b.tensors[k].slots.size()) return false;
    if (a.tensors[k].kind == TensorRef::Kind::kNone && !same_argument(a, b, k)) return false;
    for (std::size_t s = 0; s < a.tensors[k].slots.size(); ++s) {
      const SlotId x = a.tensors[k].slots[s], y = b.tensors[k].slots[s];
      if (x.valid() != y.valid() || (x.valid() && !(tape.slots[x.index()].meta == tape.slots[y.index()].meta)))
        return false;
    }
  }
  return true;
}

std::string difference(const Tape& a, const Tape& b) {
  const bool numbers_vary = !a.reads.empty();  // taken from Python in each call
  for (std::size_t i = 0; i < std::min(a.ops.size(), b.ops.size()); ++i) {
    const TapeOp& x = a.ops[i];
    const TapeOp& y = b.ops[i];
    if (!(x.handle == y.handle)) return at_op(b, i, "runs where " + full_name(x.handle) + " was recorded");
    if (settings_of(a, x) != settings_of(b, y)) return at_op(b, i, "runs under other settings of PyTorch");
    if (tells_value(x.handle) && x.role != y.role) return at_op(b, i, "is waited for, or worked out before the step");
    if (tells_value(x.handle) && x.role == TapeOp::Role::kView && x.values[0] != y.values[0])
      return at_op(b, i, "tells another number");
    const bool same_jump = numbers_vary ? x.jump.same_but_seed(y.jump) : x.jump == y.jump;
    if (!same_jump || x.grad_mode != y.grad_mode) return at_op(b, i, "runs with another generator state or grad mode");
    for (std::size_t k = 0; k < x.tensors.size(); ++k) {
      if (x.tensors[k].slots.size() != y.tensors[k].slots.size()) return at_op(b, i, "gets another number of tensors");
      for (std::size_t s = 0; s < x.tensors[k].slots.size(); ++s) {
        if (!same_slot(a, b, x.tensors[k].slots[s], y.tensors[k].slots[s], numbers_vary))
          return at_op(b, i, "gets another tensor");
      }
      // Numbers of an optimizer section change from step to step by right; the matcher refreshes them.
      if (x.section < 0 && !(numbers_vary && may_vary(x, y, k)) && !same_argument(x, y, k))
        return at_op(b, i, "gets another number");
    }
    if (!same_forms(a, b, x.results, y.results)) return at_op(b, i, "gives a result of another shape");
  }
  if (a.ops.size() != b.ops.size())
    return "the step now has " + std::to_string(b.ops.size()) + " operations, " + std::to_string(a.ops.size()) +
           " were recorded";
  if (!numbers_vary && !same_constants(a, b)) return "a constant made by the step's Python has another value";
  const bool same_results = a.returned.size() == b.returned.size() && a.kept == b.kept &&
                            std::equal(a.returned.begin(), a.returned.end(), b.returned.begin(),
                                       [&](SlotId x, SlotId y) { return same_slot(a, b, x, y, numbers_vary); });
  if (!same_results) return "the step returns or keeps other tensors";
  return a.final_jump == b.final_jump ? "" : "the step leaves the generator in another state";
}

}  // namespace stowage::runtime
