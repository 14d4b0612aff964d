#include "runtime/record/finish.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/memory/bytes.h"
#include "runtime/record/fake.h"
#include "runtime/torch/content.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

using Role = TapeOp::Role;

constexpr std::size_t kMostOpsOfDecision = 64;  // what is worked out before each call must be small beside the step

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
      if (access == Access::kWrite && (list.empty() || list.back() != static_cast<std::int32_t>(i)))
        list.push_back(static_cast<std::int32_t>(i));
    });
  }
  return writers;
}

// ---- Constants

// addmm(c, a, b, beta=0): whatever c holds.
bool scales_by_zero(const TapeOp& op) {
  const std::optional<int> beta = op.handle.schema().argumentIndexWithName("beta");
  if (!beta || op.tensors[0].kind != TensorRef::Kind::kTensor) return false;
  const c10::IValue& value = op.arguments[static_cast<std::size_t>(*beta)];
  return value.isScalar() && value.toScalar().equal(0);
}

void fill(const at::Tensor& tensor, const std::string& content) {
  if (content.empty()) return;
  device_at(tensor.device())
      .from_host(tensor.mutable_data_ptr(), content.data(), static_cast<std::int64_t>(content.size()));
}

at::Tensor with_content(const HostFilled& filled) {
  at::Tensor tensor = at::empty_strided(filled.tensor.sizes(), filled.tensor.strides(), filled.tensor.options());
  const std::size_t bytes = std::min(filled.content.size(), tensor.storage().nbytes());
  fill(tensor, filled.content.substr(0, bytes));
  return tensor;
}

// The lifted constant is written by later ops: the op that lifts it becomes a copy of it, so that every step starts
// from its content. All tensors seen over its memory are those of the copy.
//
//   before   lift_fresh(t) -> t   add_(t, 1)        after   clone(c) -> t   add_(t, 1)        c: external, as Python filled it
void make_copy(Tape& tape, BlockId constant, const HostFilled& filled) {
  TapeOp& op = tape.op(filled.lift);
  const BlockId copy(tape.blocks.size());
  Block block;
  block.bytes = tape.blocks[constant.index()].bytes;
  block.device = tape.blocks[constant.index()].device;
  block.creator = filled.lift;
  block.owner = op.results[0].slots[0];
  block.allocation = 0;
  tape.blocks.push_back(std::move(block));
  for (std::size_t i = 0; i < tape.slots.size(); ++i) {
    if (tape.slots[i].block != constant) continue;
    tape.slots[i].block = copy;
    tape.slots[i].origin = SlotId(i) == tape.blocks.back().owner ? Slot::Origin::kResult : Slot::Origin::kAlias;
  }
  const SlotId source(tape.slots.size());
  tape.blocks[constant.index()].tensor = with_content(filled);
  tape.blocks[constant.index()].of_python = true;
  tape.blocks[constant.index()].owner = source;
  tape.slots.push_back({Slot::Origin::kExternal, constant, TensorMeta::of(tape.blocks[constant.index()].tensor)});
  op.role = Role::kKernel;
  op.lifted_copy = true;
  op.handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  op.arguments = {c10::IValue(), c10::IValue(c10::MemoryFormat::Preserve)};
  op.tensors = {{TensorRef::Kind::kTensor, {source}}, {}};
  op.creates = {copy};
  op.born = {0};
  op.allocations = {tape.planned_bytes(tape.blocks[copy.index()])};
  if (op.allocations[0] == 0) tape.blocks[copy.index()].allocation = -1;
}

// The recorded step's own tensor stays its user's, who may have kept it.
at::Tensor private_copy(const HostFilled& filled) {
  const at::TensorOptions options = at::TensorOptions(filled.tensor.device()).dtype(at::kByte);
  const at::Tensor memory = at::empty_strided({static_cast<std::int64_t>(filled.content.size())}, {1}, options);
  fill(memory, filled.content);
  return make_alias(memory.storage(), TensorMeta::of(filled.tensor));
}

bool settle_constants(Tape& tape, const Names& names, const std::vector<HostFilled>& host_filled) {
  const auto writers = writers_by_block(tape);
  std::set<BlockId> settled;
  for (const HostFilled& filled : host_filled) {
    const BlockId id = names.block_of(filled.tensor);
    if (!id.valid() || !tape.blocks[id.index()].external || !settled.insert(id).second) continue;
    if (writers[id.index()].empty()) {
      tape.blocks[id.index()].tensor = private_copy(filled);
      tape.blocks[id.index()].of_python = true;
      continue;
    }
    if (!filled.lift.valid()) continue;
    make_copy(tape, id, filled);
  }
  // Whatever else is read before any op has written it was filled behind the dispatcher's back.
  std::vector<bool> undefined(tape.blocks.size(), false);
  for (const TapeOp& op : tape.ops) {
    bool reads_undefined = false;
    const bool ignores_first = scales_by_zero(op) || lays_over_first(op.handle);
    for_each_access(tape, op, [&](BlockId block, Access access) {
      const bool ignored = ignores_first && block == tape.slots[op.tensors[0].slots[0].index()].block;
      if (access == Access::kRead && !ignored) reads_undefined |= undefined[block.index()];
      if (access == Access::kWrite) undefined[block.index()] = false;
    });
    if (reads_undefined) {
      tape.refusal =
          at_line(tape, op,
                  full_name(op.handle) + " reads a tensor that no operator has filled: what is in it no plan can know");
      return false;
    }
    if (op.role != Role::kKernel || !returns_uninitialized(op.handle)) continue;
    for (const BlockId block : op.creates) undefined[block.index()] = tape.blocks[block.index()].bytes > 0;
  }
  return true;
}

// ---- The part that runs on the host

// Tensor.item() hands a number to Python. In an optimizer section the ops that lead to it run with the user's Python
// before every replay, on resident tensors (step counters); elsewhere the number may be known before the step runs. Any
// other is a read: in each call the step's Python waits for it (numbers.h).
class HostSlices {
 public:
  HostSlices(Tape& tape, const std::set<TapeOpId>& returned)
      : tape_(tape), writers_(writers_by_block(tape)), returned_(returned) {}

  bool settle() {
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      if (tape_.ops[i].form == TapeOp::Form::kUnsure) {
        const std::string how = full_name(tape_.ops[i].handle) + " declares no form of its results (register_fake)";
        if (!read(static_cast<std::int32_t>(i), how)) return false;
        continue;
      }
      if (!tells_value(tape_.ops[i].handle)) continue;
      if (tells_content(tape_.ops[i].handle) && written_later(i))
        return refuse(tape_.ops[i], "the step writes into the NumPy array of a tensor, or into the tensor behind it");
      const bool fine =
          tape_.ops[i].section >= 0 ? claim(static_cast<std::int32_t>(i)) : decision(static_cast<std::int32_t>(i));
      if (!fine) return false;
    }
    return settle_host_reads() && (consistent() || waits_instead());
  }

 private:
  // The array that Python holds would show it.
  [[nodiscard]] bool written_later(std::size_t index) const {
    const TapeOp& op = tape_.ops[index];
    if (!op.arguments[1].toBool()) return false;
    const BlockId id = tape_.slots[op.tensors[0].slots[0].index()].block;
    const Block& block = tape_.blocks[id.index()];
    // What lasts is there in each call, so a call can see whether somebody still holds the array (Matcher::array_made).
    const bool seen = op.array_until >= 0 && block.external && !block.of_python;
    const auto until = seen ? op.array_until : static_cast<std::int32_t>(tape_.ops.size());
    return std::ranges::any_of(writers_[id.index()], [&](std::int32_t writer) {
      return writer > static_cast<std::int32_t>(index) && writer < until;
    });
  }

  bool refuse(const TapeOp& op, const std::string& reason) {
    tape_.refusal = at_line(tape_, op, reason);
    return false;
  }

  // Python can run in each call, over shells.
  [[nodiscard]] bool tells_numbers() const { return tape_.below_autograd || tape_.of_parts; }

  // A number that Python waits for, in each call, or one that it only returns.
  bool read(std::int32_t index, const std::string& why_not) {
    if (!tells_numbers() && !returned_.contains(TapeOpId(index)))
      return refuse(tape_.ops[static_cast<std::size_t>(index)], why_not);
    tape_.reads.emplace_back(index);
    return true;
  }

  // Marks `index` and all that it depends on as host ops, where all of that happens in this section.
  bool claim(std::int32_t index) {
    std::vector<std::int32_t> todo = {index};
    std::set<std::int32_t> claimed;
    const int section = tape_.ops[static_cast<std::size_t>(index)].section;
    while (!todo.empty()) {
      const std::int32_t at = todo.back();
      todo.pop_back();
      const TapeOp& op = tape_.ops[static_cast<std::size_t>(at)];
      if (op.role == Role::kHost || op.role == Role::kConstant || !claimed.insert(at).second) continue;
      if (op.section != section || op.random_order >= 0 || op.form == TapeOp::Form::kUnsure)
        return read(index, "Tensor.item() in the optimizer depends on this step's data");
      for_each_access(tape_, op, [&](BlockId block, Access) {
        for (const std::int32_t writer : writers_[block.index()]) {
          if (writer < at) todo.push_back(writer);
        }
      });
    }
    for (const std::int32_t op : claimed) tape_.ops[static_cast<std::size_t>(op)].role = Role::kHost;
    return true;
  }

  // What leads to some blocks as they are before op `before`.
  struct Origins {
    std::set<std::int32_t> ops;
    bool arguments = false;       // arguments and residents: as they were before the step
    std::set<BlockId> constants;  // that Python makes: they may be others in the next call
    std::set<BlockId> externals;  // these, and those that were there before
    bool known_before = true;     // those but for parameters, and constants, alone; by few ops
  };
  Origins origins(std::vector<BlockId> blocks, std::int32_t before) const {
    Origins found;
    std::vector<std::pair<BlockId, std::int32_t>> todo;
    const auto look_at = [&](BlockId block, Access access, std::int32_t at) {
      const Block& b = tape_.blocks[block.index()];
      found.known_before &= !(b.external && (access == Access::kWrite || b.kind == BufferKind::kParameter));
      found.arguments |= b.external && !b.of_python;
      if (b.of_python) found.constants.insert(block);
      if (b.external) found.externals.insert(block);
      todo.emplace_back(block, at);
    };
    for (const BlockId block : blocks) look_at(block, Access::kRead, before);
    while (!todo.empty() && found.known_before) {
      const auto [block, at] = todo.back();
      todo.pop_back();
      for (const std::int32_t writer : writers_[block.index()]) {
        if (writer >= at || !found.ops.insert(writer).second) continue;
        found.known_before &= found.ops.size() <= kMostOpsOfDecision;
        const TapeOp& op = tape_.ops[static_cast<std::size_t>(writer)];
        found.known_before &= op.form != TapeOp::Form::kUnsure && op.random_order < 0 && !any_sparse(op.arguments);
        found.known_before &= !talks_to_other_processes(op.handle);  // which answer when all ask
        for_each_access(tape_, op, [&](BlockId next, Access access) { look_at(next, access, writer); });
      }
    }
    return found;
  }

  void note_origins(const Origins& from, DataGuard& guard) const {
    guard.of_arguments = from.arguments;
    guard.needs.assign(from.ops.begin(), from.ops.end());
    guard.origins.assign(from.externals.begin(), from.externals.end());
    guard.overwritten = std::ranges::any_of(guard.origins, [&](BlockId id) { return !writers_[id.index()].empty(); });
  }

  // Outside of the optimizers a number by which Python may go must be known before the step runs: from constants, or worked
  // out anew before each call (data_guards.h).
  bool decision(std::int32_t index) {
    TapeOp& op = tape_.ops[static_cast<std::size_t>(index)];
    std::vector<BlockId> blocks;
    for_each_access(tape_, op, [&](BlockId block, Access) { blocks.push_back(block); });
    const Origins from = origins(blocks, index);
    if (!from.known_before || returned_.contains(TapeOpId(index))) {
      const std::string what = reads_scalar(op.handle) ? "Tensor.item()" : full_name(op.handle);
      return read(index, what + " inside the step: control flow or numbers that depend on data");
    }
    op.role = Role::kView;
    DataGuard& guard = guards_.emplace_back();
    guard.op = guard.at = index;
    note_origins(from, guard);
    return true;
  }

  // The batch sizes of packed sequences are their lengths told in another way, and those were read, too.
  [[nodiscard]] bool follows_from_lengths(const DataGuard& guard) const {
    const Block& block = tape_.blocks[tape_.slots[guard.tensor.index()].block.index()];
    if (block.external || writers_[tape_.slots[guard.tensor.index()].block.index()].size() != 1) return false;
    const TapeOp& maker = tape_.op(block.creator);
    if (full_name(maker.handle) != "aten::_pack_padded_sequence") return false;
    if (maker.results[1].slots[0] != block.owner) return false;
    return std::ranges::any_of(tape_.data_guards, [&](const DataGuard& other) {
      return other.tensor.valid() && other.tensor == maker.tensors[1].slots[0] && !other.implied &&
             TapeOpId(other.at) == block.creator;
    });
  }

  bool settle_host_reads() {
    for (DataGuard& guard : tape_.data_guards) {
      if (!guard.tensor.valid()) continue;
      const Origins from = origins({tape_.slots[guard.tensor.index()].block}, guard.at);
      if (!from.known_before && follows_from_lengths(guard)) {
        guard.implied = true;
        guards_.push_back(std::move(guard));
        continue;
      }
      if (!from.known_before) {
        tape_.refusal = guard.where + " reads a tensor on the host: numbers that depend on data";
        return false;
      }
      for (const BlockId constant : from.constants) tape_.blocks[constant.index()].fixed = true;
      note_origins(from, guard);
      guards_.push_back(std::move(guard));
    }
    std::stable_sort(guards_.begin(), guards_.end(),
                     [](const DataGuard& a, const DataGuard& b) { return a.at < b.at; });
    tape_.data_guards = std::move(guards_);
    return true;
  }

  // Host ops run before all others, so what they write must not be touched by a replayed op before their last write,
  // nor written by one at all; and what they make stays with them: neither a kernel nor the step's end hands it out.
  bool consistent() {
    std::vector<std::int32_t> last_host_write(tape_.blocks.size(), -1);
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      if (op.role != Role::kHost) continue;
      for (const BlockId block : op.creates) last_host_write[block.index()] = INT32_MAX;
      for_each_access(tape_, op, [&](BlockId block, Access access) {
        if (access == Access::kWrite)
          last_host_write[block.index()] = std::max(last_host_write[block.index()], static_cast<std::int32_t>(i));
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
      if (!clash) continue;
      clash_ = at_line(tape_, op, full_name(op.handle) + " and Tensor.item() in the optimizer share a tensor");
      return false;
    }
    const bool handed_out = std::ranges::any_of(tape_.returned, [&](SlotId slot) {
      return slot.valid() && last_host_write[tape_.slots[slot.index()].block.index()] == INT32_MAX;
    });
    if (handed_out) clash_ = "the step keeps a tensor on which Tensor.item() in the optimizer depends";
    return !handed_out;
  }

  // Nothing runs on the host before the plan: Python waits for each number.
  bool waits_instead() {
    if (!tells_numbers()) {
      tape_.refusal = clash_;
      return false;
    }
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      TapeOp& op = tape_.ops[i];
      if (op.role == Role::kHost && tells_value(op.handle)) tape_.reads.emplace_back(i);
      if (op.role == Role::kHost) op.role = Role::kKernel;
    }
    std::sort(tape_.reads.begin(), tape_.reads.end());
    return true;
  }

  Tape& tape_;
  std::vector<std::vector<std::int32_t>> writers_;
  const std::set<TapeOpId>& returned_;
  std::vector<DataGuard> guards_;
  std::string clash_;
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
    if (!block.external && block.kind != BufferKind::kGradient) block.kind = BufferKind::kOutput;
  }
}

}  // namespace

HostFilled HostFilled::copy_of(const at::Tensor& tensor, TapeOpId lift) {
  HostFilled filled{tensor, {}, lift};
  const bool readable = !tensor.is_meta() && tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python);
  if (readable) filled.content = bytes_of(tensor.storage());
  return filled;
}

void settle_filled(Tape& tape, const std::vector<FilledInside>& filled) {
  for (const FilledInside& f : filled) {
    Block& block = tape.blocks[f.block.index()];
    TapeOp& op = tape.op(f.op);
    if (op.creates.size() != 1) continue;
    op.creates.clear();
    op.born.clear();
    op.allocations.clear();
    op.role = Role::kView;
    block.external = block.of_python = true;
    block.kind = BufferKind::kConstant;
    block.creator = TapeOpId();
    block.allocation = -1;
    block.tensor = private_copy({f.tensor, f.read ? f.content : bytes_of(f.tensor.storage()), f.op});
    block.owner = SlotId(tape.slots.size());
    for (Slot& slot : tape.slots) {
      if (slot.block == f.block) slot.origin = Slot::Origin::kAlias;
    }
    tape.slots.push_back({Slot::Origin::kExternal, f.block, TensorMeta::of(block.tensor)});
  }
}

void finish_tape(Tape& tape, const Names& names, const std::vector<HostFilled>& host_filled, bool fake,
                 const std::set<TapeOpId>& returned_numbers) {
  tape.fake = fake;
  if (fake) {
    settle_fakes(tape);
  } else if (!settle_constants(tape, names, host_filled)) {
    return;
  }
  if (!HostSlices(tape, returned_numbers).settle()) return;
  settle_kinds(tape);
}

}  // namespace stowage::runtime
