// The Tape: one recorded training step, every leaf operator with its boxed arguments, in the order in which eager ran
// them.
//
//   x ──mm──► y ──relu_──► y ──t──► yt          slots    x  y  yt      a tensor as the step names it: metadata over a block
//   blocks:  X            Y                     blocks   X  Y          an allocation: what the Graph calls a buffer
//
// Identity is the block. A slot is either the result of an op, an external tensor (it existed before the step), or an
// alias: metadata over a block that is rebuilt wherever it is needed. Views are aliases, so ops that only make views
// are never replayed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/torch/generator.h"
#include "runtime/torch/kernel_settings.h"
#include "runtime/torch/tensor_meta.h"
#include "stowage/graph.h"
#include "stowage/ids.h"

namespace stowage::runtime {

using SlotId = Id<struct SlotTag>;    // position in Tape::slots
using BlockId = Id<struct BlockTag>;  // position in Tape::blocks
using TapeOpId = Id<struct TapeOpTag>;

struct Slot {
  enum class Origin : std::uint8_t { kExternal, kResult, kAlias };
  Origin origin = Origin::kExternal;
  BlockId block;
  TensorMeta meta;
  bool made = false;   // by an op that is on the tape, be it a view
  bool moved = false;  // some call had it elsewhere in its block than the recorded one (matcher_views.cpp)
};

struct Block {
  std::int64_t bytes = 0;
  c10::Device device{c10::DeviceType::CPU};
  BufferKind kind = BufferKind::kTemporary;
  bool external = false;  // existed before the step, or holds a constant that the step's Python made
  // external: a constant that the step's Python makes; `tensor` is a copy, which takes what Python makes in later calls
  bool of_python = false;
  // external: the optimizer's Python makes it anew in every step; its content is not that of the recording
  bool refreshed = false;
  // external: no parameter, state or argument, and not Python's own: the step came by it, and may by another
  bool found = false;
  bool replaced = false;  // found: in a later call another tensor came in its place
  // found: in a later call, tensors that share memory otherwise than the recorded ones came in their places
  bool scattered = false;
  // external, where some are taken by value: found or made by Python, and no op writes there
  bool only_read = false;
  // of_python: a copy of what one argument of one op looks at (by_value.h)
  bool by_value = false;
  // of_python: lifted as it lay, over memory that Python has by itself (from_numpy): neither writes there
  bool shared = false;
  // of_python: an op that is no kernel reads it on the host; with another content the step is another step
  bool fixed = false;
  int input = -1;  // external: position in the step's inputs of the one that begins it, or -1
  // input: where in that argument's storage it began when recorded; elsewhere in the next call
  std::int64_t start_bytes = 0;
  // input: a gradient that the step lets go of, unread, before any part of a planned call runs
  bool dropped = false;
  std::string name;  // external: as the user knows it
  // external, not an input: over it, as its owner was. Undefined where the step could reach it, and has not touched it:
  // its memory is not held, but known
  at::Tensor tensor;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> untouched;
  TapeOpId creator;     // not external
  SlotId owner;         // the slot of the op's own result, or the external slot
  int allocation = -1;  // not external: position among the creator's allocations, or -1 when it was not seen (fakes)
};

// A tensor that lasts, as it was found before the step. Where it lies is Python's to change (`p.data = …`), within the
// step, too, and no guard sees it. Several may share a block: tied weights, parameters that are views of one flat buffer.
struct Tenant {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  Weak tensor;
  BlockId block;
  bool owner = false;  // the first that was found in its block, which is no input
  // Its place in the block, when a call began whose Python did what is on the tape; none: elsewhere
  std::optional<TensorMeta> place;
  std::optional<TensorMeta> now;  // when the latest call began
};

// The tensors of one argument or return, in order; -1 for an undefined tensor or an empty optional.
struct TensorRef {
  enum class Kind : std::uint8_t { kNone, kTensor, kTensorList, kOptionalTensorList };
  Kind kind = Kind::kNone;
  std::vector<SlotId> slots;
};

struct TapeOp {
  enum class Role : std::uint8_t {
    kKernel,    // replayed at planned addresses
    kView,      // only makes aliases, or nothing at all: not replayed
    kHost,      // in an optimizer section: decides Python scalars, so it runs with the user's Python, before the plan
    kConstant,  // fakes only: makes an external constant; not replayed
  };
  Role role = Role::kKernel;
  c10::OperatorHandle handle;
  std::vector<c10::IValue> arguments;     // tensors are None here; see tensors
  std::vector<TensorRef> tensors;         // one per argument
  std::vector<TensorRef> results;         // one per return
  std::vector<c10::IValue> values;        // one per return: what is not a tensor
  std::vector<std::int64_t> allocations;  // bytes, in order
  std::vector<Scratch> scratch;           // those of the allocations that the op gave back, in order ...
  std::vector<int> scratch_allocation;    // ... and their positions among the allocations
  std::vector<BlockId> creates;
  std::vector<std::int32_t> born;  // one per created block
  std::int32_t ticks = 1;
  std::int64_t cost_ns = 0;
  int random_order = -1;    // position among the ops that draw random numbers, or -1
  bool draws_none = false;  // such an op, but the generator stayed as it was (dropout_p=0)
  GeneratorPart drawn_from = kHostGenerator;
  int generator = -1;  // which argument says so, or -1
  // It tells all of a tensor for an array over its memory: the op before which nobody held that any more, or -1
  std::int32_t array_until = -1;
  bool asks_shape = false;  // it tells what decides the next op's shape (shape_questions.h)
  // Its results have the form that was recorded: of PyTorch's operators that is known; those of others are looked at, and
  // Python waits for them where the operator does not even declare it (Matcher::wait_for_form)
  enum class Form : std::uint8_t { kKnown, kDeclared, kUnsure };
  Form form = Form::kKnown;
  bool varies = false;  // some call has given it other numbers, or looked elsewhere
  // An earlier draw, by position, that drew the same from the same state (a checkpoint's), or -1
  int repeats = -1;
  GeneratorJump jump;        // of the generator, before the op
  bool lifted_copy = false;  // stands for lift_fresh(): copies a constant that the step goes on to write
  bool grad_mode = false;
  bool backward = false;
  std::int32_t settings = 0;  // position in Tape::settings
  int section = -1;           // optimizer section, or -1
  int line = -1;              // position in Tape::lines
  // It may raise because of what tensors hold: a number for the codes around it, of the recorder's user; else -1
  std::int32_t around = -1;
  [[nodiscard]] bool draws() const { return random_order >= 0 && !draws_none; }
  // The argument whose number must be the recorded one, as the plan relies on it, or -1: with another one the step is
  // another step
  int fixed_number = -1;
  std::int64_t tile_pool_bytes = 0;  // that the tiles named by it were seen to need (tiles.h)

  TapeOp(c10::OperatorHandle op) : handle(op) {}  // NOLINT: OperatorHandle has no default
};

// A stretch of the tape that came from one call of optimizer.step(); the user's Python runs again there, every step.
struct Section {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

// Something about data that the step's Python, or an op that is no kernel, asked for and may have decided by; it
// follows from the arguments and from what Python gives the step. Either a number that an op handed over, or all of a
// tensor.
struct DataGuard {
  bool of_arguments = true;           // else of Python's own constants alone
  std::int32_t op = -1;               // that handed it over, or -1
  std::vector<std::int32_t> needs;    // the ops that lead to it, in order
  SlotId tensor;                      // else: the tensor that was read,
  std::string content;                // its elements in order
  std::int32_t at = 0;                // before which op,
  std::string where;                  // and by what
  bool implied = false;               // it follows from what another guard has read
  std::vector<BlockId> origins;       // external ones that it follows from
  bool overwritten = false;           // the step writes to one of them, afterwards
  std::optional<c10::IValue> latest;  // number that Python has been told, in the place of the recorded one
  // What leads to it on the tape has changed since: a call has given it that did not come to ask for the number
  bool stale = false;
};

struct Tape {
  // Where the plan's arena will lie. What the step keeps on the host meanwhile (an optimizer's step counters) has no
  // place in it.
  c10::Device device{c10::DeviceType::CPU};
  std::vector<Slot> slots;
  std::vector<Block> blocks;
  std::vector<Tenant> tenants;
  std::vector<TapeOp> ops;
  std::vector<Section> sections;
  std::vector<DataGuard> data_guards;  // in the order in which Python asked
  std::vector<TapeOpId> reads;         // ops that hand Python numbers which the step itself makes (numbers.h)
  std::vector<std::string> lines;      // "file:line" of the user's code
  std::vector<SlotId> returned;        // slots to hand out at the end of a step
  std::vector<bool> until_next;        // of those: gone before any part of the next call runs
  // So many of them, the last ones, are whole blocks that the step's Python keeps beyond its end
  std::size_t kept = 0;
  bool finds = false;     // each call comes by other tensors by itself
  bool by_value = false;  // some of those are taken by value
  // Under which its ops run: first those from before the step, then what it changes itself
  std::vector<KernelSettings> settings;
  int random_ops = 0;
  int drawing_ops = 0;        // of those; the others draw nothing the way they are called
  Generators generators;      // beside the default ones, those that it found or made; kernels draw from these objects
  GeneratorJump final_jump;   // of the generators, after the last op
  bool sets_come_by = false;  // Python sets a generator that no earlier tape knows
  // Which of them do its runs leave elsewhere, or move meanwhile? What has moved another one is another thread's, and
  // stays.
  OfGeneratorParts<bool> moved;
  void settle_moved();
  bool fake = false;            // recorded with tensors without memory: what happens inside ops was not seen
  bool foreign = false;         // it has kernels that are not PyTorch's, and may be in Python
  bool below_autograd = false;  // at which level of the hook it was recorded
  bool of_parts = false;        // of tensors that are split over ranks: what these run inside was recorded
  // The step counts from the beginning of an argument's storage: the next must begin there, too
  bool absolute_inputs = false;
  std::string refusal;  // why this step cannot be replayed; empty when it can
  std::int64_t wall_ns = 0;

  // Bytes of the arena's device that a block takes.
  [[nodiscard]] std::int64_t planned_bytes(const Block& block) const {
    return block.device == device ? block.bytes : 0;
  }

  [[nodiscard]] TapeOp& op(TapeOpId id) { return ops[id.index()]; }
  [[nodiscard]] const TapeOp& op(TapeOpId id) const { return ops[id.index()]; }
};

// How an op touches the data of its tensors at `argument`.
enum class Access : std::uint8_t { kNone, kRead, kWrite };  // a write reads the old content too
Access access_of(const TapeOp& op, std::size_t argument);

// Calls visit(block, access) for each tensor argument whose data the op touches. Ops that are not replayed touch
// nothing.
template <class Visit>
void for_each_access(const Tape& tape, const TapeOp& op, Visit visit) {
  if (op.role != TapeOp::Role::kKernel && op.role != TapeOp::Role::kHost) return;
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    const Access access = access_of(op, i);
    if (access == Access::kNone) continue;
    for (const SlotId slot : op.tensors[i].slots) {
      if (slot.valid()) visit(tape.slots[slot.index()].block, access);
    }
  }
}

// By block: it is an op's argument, or is returned.
std::vector<bool> touched_blocks(const Tape& tape);

// What differs first between two recordings of a step (b is the newer one), or "" when they hold the same program: same
// ops, same tensors, same numbers.
std::string difference(const Tape& a, const Tape& b);

// From the same generator state, do both ops draw the same?
bool draws_alike(const Tape& tape, const TapeOp& a, const TapeOp& b);

// Do both begin with the same `ops` operations, but for Python's numbers? Then now_called[i] is how `b` calls the block
// i of `a`, where these operations name it.
bool same_beginning(const Tape& a, const Tape& b, std::size_t ops, std::vector<BlockId>& now_called);

// "aten::add_.Tensor (train.py:12)"
std::string name_with_line(const Tape& tape, const TapeOp& op);

}  // namespace stowage::runtime
