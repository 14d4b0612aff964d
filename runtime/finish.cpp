#include "runtime/finish.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/fake.h"
#include "runtime/op_traits.h"

namespace stowage::runtime {
namespace {

using Role = TapeOp::Role;

std::string at_line(const Tape& tape, const TapeOp& op, const std::string& reason) {
  return (op.line >= 0 ? tape.lines[static_cast<std::size_t>(op.line)] + ": " : std::string()) + reason;
}

// Ops that give each block content, in tape order.
std::vector<std::vector<std::int32_t>> writers_by_block(const Tape& tape) {
  std::vector<std::vector<std::int32_t>> writers(tape.blocks.size());
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    const TapeOp& op = tape.ops[i];
    for (const BlockId block : op.creates) writers[block.index()].push_back(static_cast<std::int32_t>(i));
    for_each_access(tape, op, [&](BlockId block, Access access) {
      auto& list = writers[block.index()];
      if (access == Access::kWrite && (list.empty() || list.back() != static_cast<std::int32_t>(i))) list.push_back(static_cast<std::int32_t>(i));
    });
  }
  return writers;
}

// ---- Constants

at::Tensor storage_with(const HostFilled& filled) {
  at::Tensor tensor = at::empty_strided(filled.tensor.sizes(), filled.tensor.strides(), filled.tensor.options());
  const std::size_t bytes = std::min(filled.content.size(), tensor.storage().nbytes());
  if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), filled.content.data(), bytes);
  return tensor;
}

// `op`, which returned memory for Python to fill, becomes a copy of what Python filled it with: later ops write to it.
void make_copy(Tape& tape, TapeOp& op, const HostFilled& filled) {
  const BlockId constant(tape.blocks.size());
  const SlotId slot(tape.slots.size());
  const at::Tensor tensor = storage_with(filled);
  Block block;
  block.bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  block.kind = BufferKind::kConstant;
  block.external = true;
  block.name = "constant_" + std::to_string(constant.value);
  block.tensor = tensor;
  block.owner = slot;
  tape.blocks.push_back(std::move(block));
  tape.slots.push_back({Slot::Origin::kExternal, constant, TensorMeta::of(tensor)});
  op.handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  op.arguments = {c10::IValue(), c10::IValue(c10::MemoryFormat::Preserve)};
  op.tensors = {{TensorRef::Kind::kTensor, {slot}}, {}};
}

bool settle_constants(Tape& tape, const Names& names, const std::vector<HostFilled>& host_filled) {
  const auto writers = writers_by_block(tape);
  std::set<BlockId> settled;
  for (const HostFilled& filled : host_filled) {
    const BlockId id = names.block_of(filled.tensor);
    if (!id.valid() || tape.blocks[id.index()].external || !settled.insert(id).second) continue;
    TapeOp& creator = tape.op(tape.blocks[id.index()].creator);
    if (!returns_uninitialized(creator.handle)) continue;
    if (writers[id.index()].size() == 1) {
      make_external(tape, id, filled.tensor);
    } else if (creator.section < 0) {
      make_copy(tape, creator, filled);
    } else {
      tape.refusal = at_line(tape, creator, "the optimizer writes to a tensor that it makes from Python numbers");
      return false;
    }
  }
  // Whatever else is read before any op has written it was filled behind the dispatcher's back.
  std::vector<bool> undefined(tape.blocks.size(), false);
  for (const TapeOp& op : tape.ops) {
    bool reads_undefined = false;
    for_each_access(tape, op, [&](BlockId block, Access access) {
      if (access == Access::kRead) reads_undefined |= undefined[block.index()];
      if (access == Access::kWrite) undefined[block.index()] = false;
    });
    if (reads_undefined) {
      tape.refusal = at_line(tape, op, full_name(op.handle) + " reads a tensor that was filled outside PyTorch's dispatcher");
      return false;
    }
    if (op.role != Role::kKernel || !returns_uninitialized(op.handle)) continue;
    for (const BlockId block : op.creates) undefined[block.index()] = tape.blocks[block.index()].bytes > 0;
  }
  return true;
}

// ---- The part that runs on the host

// Tensor.item() hands a number to Python. In an optimizer section the ops that lead to it run with the user's Python before every
// replay, on resident tensors (step counters); elsewhere the number must not depend on anything that changes.
class HostSlices {
 public:
  explicit HostSlices(Tape& tape) : tape_(tape), writers_(writers_by_block(tape)) {}

  bool settle() {
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      if (!reads_scalar(tape_.ops[i].handle)) continue;
      const bool fine = tape_.ops[i].section >= 0 ? claim(static_cast<std::int32_t>(i)) : constant(static_cast<std::int32_t>(i));
      if (!fine) return false;
    }
    return consistent();
  }

 private:
  bool refuse(const TapeOp& op, const std::string& reason) {
    tape_.refusal = at_line(tape_, op, reason);
    return false;
  }

  // Marks `index` and all that it depends on as host ops.
  bool claim(std::int32_t index) {
    std::vector<std::int32_t> todo = {index};
    const int section = tape_.ops[static_cast<std::size_t>(index)].section;
    while (!todo.empty()) {
      const std::int32_t at = todo.back();
      todo.pop_back();
      TapeOp& op = tape_.ops[static_cast<std::size_t>(at)];
      if (op.role == Role::kHost || op.role == Role::kConstant) continue;
      if (op.section != section || op.random_order >= 0) {
        return refuse(tape_.ops[static_cast<std::size_t>(index)], "Tensor.item() in the optimizer depends on this step's data");
      }
      op.role = Role::kHost;
      for_each_access(tape_, op, [&](BlockId block, Access) {
        for (const std::int32_t writer : writers_[block.index()]) {
          if (writer < at) todo.push_back(writer);
        }
      });
    }
    return true;
  }

  bool constant(std::int32_t index) {
    std::vector<std::int32_t> todo = {index};
    std::set<std::int32_t> seen = {index};
    while (!todo.empty()) {
      const std::int32_t at = todo.back();
      todo.pop_back();
      const TapeOp& op = tape_.ops[static_cast<std::size_t>(at)];
      bool changes = op.random_order >= 0;
      for_each_access(tape_, op, [&](BlockId block, Access) {
        const Block& b = tape_.blocks[block.index()];
        changes |= b.external && b.kind != BufferKind::kConstant;
        for (const std::int32_t writer : writers_[block.index()]) {
          if (writer < at && seen.insert(writer).second) todo.push_back(writer);
        }
      });
      if (changes) {
        return refuse(tape_.ops[static_cast<std::size_t>(index)], "Tensor.item() inside the step: control flow or numbers that depend on data");
      }
    }
    tape_.ops[static_cast<std::size_t>(index)].role = Role::kView;
    return true;
  }

  // Host ops run before all others, so what they write must not be touched by a replayed op before their last write, nor written
  // by one at all; and what they make stays with them.
  bool consistent() {
    std::vector<std::int32_t> last_host_write(tape_.blocks.size(), -1);
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      if (op.role != Role::kHost) continue;
      for (const BlockId block : op.creates) last_host_write[block.index()] = INT32_MAX;
      for_each_access(tape_, op, [&](BlockId block, Access access) {
        if (access == Access::kWrite) last_host_write[block.index()] = std::max(last_host_write[block.index()], static_cast<std::int32_t>(i));
      });
    }
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      if (op.role != Role::kKernel) continue;
      bool clash = false;
      for_each_access(tape_, op, [&](BlockId block, Access access) {
        const std::int32_t last = last_host_write[block.index()];
        clash |= last >= 0 && (access == Access::kWrite || last > static_cast<std::int32_t>(i));
      });
      if (clash) return refuse(op, full_name(op.handle) + " and Tensor.item() in the optimizer share a tensor");
    }
    return true;
  }

  Tape& tape_;
  std::vector<std::vector<std::int32_t>> writers_;
};

// ---- Kinds

void settle_kinds(Tape& tape) {
  for (const TapeOp& op : tape.ops) {
    if (!op.backward) continue;
    for_each_access(tape, op, [&](BlockId block, Access) {
      Block& b = tape.blocks[block.index()];
      if (b.external || b.kind != BufferKind::kTemporary) return;
      const TapeOp& creator = tape.op(b.creator);
      if (!creator.backward && creator.section < 0) b.kind = BufferKind::kActivation;
    });
  }
  for (const SlotId slot : tape.returned) {
    if (!slot.valid()) continue;
    Block& block = tape.blocks[tape.slots[slot.index()].block.index()];
    if (!block.external) block.kind = BufferKind::kOutput;
  }
}

}  // namespace

void make_external(Tape& tape, BlockId id, const at::Tensor& tensor) {
  Block& block = tape.blocks[id.index()];
  tape.op(block.creator).role = Role::kConstant;
  std::erase(tape.op(block.creator).creates, id);
  tape.op(block.creator).born.resize(tape.op(block.creator).creates.size());
  block.external = true;
  block.kind = BufferKind::kConstant;
  block.name = "constant_" + std::to_string(id.value);
  block.tensor = tensor;
  tape.slots[block.owner.index()].origin = Slot::Origin::kExternal;
}

HostFilled HostFilled::copy_of(const at::Tensor& tensor) {
  HostFilled filled{tensor, {}};
  const bool readable = tensor.device().is_cpu() && tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python);
  if (readable) filled.content.assign(static_cast<const char*>(tensor.storage().data()), tensor.storage().nbytes());
  return filled;
}

void finish_tape(Tape& tape, const Names& names, const std::vector<HostFilled>& host_filled, bool fake) {
  if (fake) {
    settle_fakes(tape);
  } else if (!settle_constants(tape, names, host_filled)) {
    return;
  }
  if (!HostSlices(tape).settle()) return;
  settle_kinds(tape);
}

}  // namespace stowage::runtime
