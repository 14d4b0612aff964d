#include "runtime/replay/plain_run.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "runtime/memory/plainly.h"
#include "runtime/replay/results.h"
#include "runtime/replay/saved_blocks.h"
#include "runtime/replay/tile_run.h"
#include "runtime/torch/collectives.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

namespace {

// All bytes of a storage, as far as a block has them.
TensorMeta flat(std::int64_t bytes) {
  return {.sizes = {bytes}, .strides = {1}, .dtype = caffe2::TypeMeta::Make<std::uint8_t>()};
}

// Of a larger storage.
bool is_part(const Block& block, const at::Tensor& input) {
  return span_bytes(input).first != 0 || block.bytes != static_cast<std::int64_t>(input.storage().nbytes());
}

}  // namespace

std::vector<Digest> digests_of_results(const Tape& tape, const TapeOp& op, const std::vector<c10::Storage>& storages) {
  std::vector<Digest> digests;
  const auto add = [&](BlockId block) {
    const c10::Storage& storage = storages[block.index()];
    if (!storage) return;
    const Block& of = tape.blocks[block.index()];
    const AtHand there(storage);
    if (of.external) {
      digests.push_back(digest(storage, std::min(static_cast<std::int64_t>(storage.nbytes()), of.bytes)));
    } else {
      digests.push_back(digest(make_tensor(storage, tape.slots[of.owner.index()].meta)));
    }
  };
  if (returns_uninitialized(op.handle)) return digests;
  for (const BlockId block : op.creates) add(block);
  for_each_access(tape, op, [&](BlockId block, Access access) {
    if (access == Access::kWrite) add(block);
  });
  return digests;
}

PlainRun::PlainRun(const Tape& tape, const std::vector<at::Tensor>& inputs)
    : tape_(tape), storages_(tape.blocks.size()) {
  states_.resize(static_cast<std::size_t>(tape.random_ops) + 1);
  for (std::size_t i = 0; i < tape.blocks.size(); ++i) {
    const Block& block = tape.blocks[i];
    if (!block.external) continue;
    if (block.input < 0) {
      if (block.tensor.defined()) storages_[i] = block.tensor.storage();
    } else if (static_cast<std::size_t>(block.input) < inputs.size()) {
      const at::Tensor& input = inputs[static_cast<std::size_t>(block.input)];
      if (!input.defined()) continue;
      if (is_part(block, input)) at_hand_.push_back(std::make_unique<AtHand>(input.storage()));
      storages_[i] = part_of(input.storage(), span_bytes(input).first, block.bytes);
    }
  }
}

bool PlainRun::any_part(const Tape& tape, const std::vector<at::Tensor>& inputs) {
  return std::ranges::any_of(tape.blocks, [&](const Block& block) {
    if (!block.external || block.input < 0 || static_cast<std::size_t>(block.input) >= inputs.size()) return false;
    const at::Tensor& input = inputs[static_cast<std::size_t>(block.input)];
    return input.defined() && is_part(block, input);
  });
}

// Puts back what the ops have written when it dies, unless it was told to forget.
class PlainRun::TakenBack {
 public:
  TakenBack(PlainRun& run, std::int32_t until)
      : run_(run), until_(until), generator_(GeneratorState::current(run.tape_.generators)) {}
  ~TakenBack() {
    if (!can_) return;
    saved_.restore([&](BlockId block) -> c10::Storage& { return run_.storage(block); });
    generator_.restore(run_.tape_.moved);
  }
  TakenBack(const TakenBack&) = delete;
  TakenBack& operator=(const TakenBack&) = delete;

  void before(std::int32_t op) {
    if (!can_ || op >= until_) return forget();
    saved_.add_written(run_.tape_, run_.tape_.ops[static_cast<std::size_t>(op)],
                       [&](BlockId block) -> c10::Storage& { return run_.storage(block); });
  }
  void forget() {
    can_ = false;
    saved_.clear();
  }

 private:
  PlainRun& run_;
  std::int32_t until_;
  GeneratorState generator_;
  SavedBlocks saved_{Kept::kOnce};
  // An eager budget may have put elsewhere what would be saved; it keeps copies of its own
  bool can_ = !thread_attached();
};

std::vector<std::vector<BlockId>> PlainRun::last_uses(std::int32_t to) const {
  std::vector<std::int32_t> last(tape_.blocks.size(), -1);
  for (std::int32_t i = 0; i < to; ++i) {
    const TapeOp& op = tape_.ops[static_cast<std::size_t>(i)];
    for (const BlockId block : op.creates) last[block.index()] = i;
    for_each_access(tape_, op, [&](BlockId block, Access) { last[block.index()] = i; });
  }
  for (std::size_t t = 0; tiles_ != nullptr && t < tiles_->size(); ++t)
    for (const BlockId block : (*tiles_)[t].reads)
      last[block.index()] = std::max(last[block.index()], (*tiles_)[t].at.value);
  std::vector<std::vector<BlockId>> uses(static_cast<std::size_t>(to));
  for (std::size_t b = 0; b < last.size(); ++b) {
    if (last[b] >= 0 && !tape_.blocks[b].external) uses[static_cast<std::size_t>(last[b])].push_back(BlockId(b));
  }
  return uses;
}

void PlainRun::run(std::int32_t to, Shells& shells, bool copies) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::AutoGradMode grad_mode_restorer(c10::GradMode::is_enabled());
  const std::vector<std::vector<BlockId>> ends = last_uses(to);
  FirstWrites writes(tape_);
  for (std::int32_t i = 0; i < to; ++i) writes.next(tape_.ops[static_cast<std::size_t>(i)], false);
  TakenBack undo(*this, static_cast<std::int32_t>(writes.save_until()));
  torch::jit::Stack stack;
  for (std::int32_t i = 0; i < to; ++i) {
    undo.before(i);
    run_op(i, stack);
    for (const BlockId block : ends[static_cast<std::size_t>(i)]) {
      if (!is_held(shells[block.index()])) storages_[block.index()] = c10::Storage();
    }
  }
  const bool whole = to == static_cast<std::int32_t>(tape_.ops.size());
  if (whole) tape_.final_jump.make(states_, tape_.generators);
  undo.forget();
  hand_over(shells, copies);
}

void PlainRun::run_op(std::int32_t index, torch::jit::Stack& stack) {
  const TapeOp& op = tape_.ops[static_cast<std::size_t>(index)];
  if (index == 0) states_[0] = GeneratorState::current(tape_.generators);
  if (tiles_ != nullptr) run_tiles_at(index);
  if (op.role != TapeOp::Role::kKernel) return;
  op.jump.make(states_, tape_.generators);
  call(op, stack);
  if (op.random_order >= 0)
    states_[static_cast<std::size_t>(op.random_order) + 1] = GeneratorState::current(tape_.generators);
  if (tiles_ != nullptr) take_tiles(op);
  if (traced_ != nullptr && (only_.empty() || only_[static_cast<std::size_t>(index)]))
    (*traced_)[static_cast<std::size_t>(index)] = digests_of_results(tape_, op, storages_);
}

void PlainRun::replace(const std::vector<Tiles>& tiles, TileError& error) {
  tiles_ = &tiles;
  error_ = &error;
  tiled_.resize(tape_.blocks.size());
  tile_output_.assign(tape_.blocks.size(), nullptr);
  for (const Tiles& each : tiles)
    for (const TileOutput& output : each.outputs) tile_output_[output.block.index()] = &output;
}

void PlainRun::run_tiles_at(std::int32_t index) {
  for (const Tiles& tiles : *tiles_) {
    if (tiles.at.value != index) continue;
    std::vector<c10::Storage> outputs;
    for (const TileOutput& output : tiles.outputs) {
      const auto bytes = static_cast<std::size_t>(tape_.blocks[output.block.index()].bytes);
      c10::Allocator* const allocator = c10::GetAllocator(tape_.device.type());
      outputs.emplace_back(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                           /*resizable=*/true);
    }
    const TileRun::Memory memory{[&](SlotId slot) { return tensor(slot); },
                                 [&](BlockId block) -> const c10::Storage& { return storages_[block.index()]; },
                                 nullptr};
    TileRun(tape_, tiles, memory).run(outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const BlockId block = tiles.outputs[i].block;
      tiled_[block.index()] = outputs[i];
      if (!storages_[block.index()]) continue;
      take_tiled(block);
    }
  }
}

// Where the tiles have run before the recorded kernels.
void PlainRun::take_tiles(const TapeOp& op) {
  for (const BlockId block : op.creates)
    if (tiled_[block.index()]) take_tiled(block);
}

// What is wrong by more than roundings trains nobody.
void PlainRun::take_tiled(BlockId block) {
  c10::Storage tiled = std::exchange(tiled_[block.index()], c10::Storage());
  c10::Storage& recorded = storages_[block.index()];
  if (compare_tiles(tape_, *tile_output_[block.index()], tiled, recorded, *error_)) recorded = std::move(tiled);
}

void PlainRun::call(const TapeOp& op, torch::jit::Stack& stack) {
  stack.clear();
  push_arguments(op, stack);
  const SettingsScope as_recorded(tape_.settings, op.settings);
  if (c10::GradMode::is_enabled() != op.grad_mode) c10::GradMode::set_enabled(op.grad_mode);
  if (is_collective(op.handle)) {
    run_collective(op.handle, &stack);
  } else {
    op.handle.callBoxed(&stack);
  }
  if (op.form != TapeOp::Form::kKnown && !has_recorded_form(tape_, op, stack)) {
    TORCH_CHECK(op.form == TapeOp::Form::kUnsure, "stowage: ", name_with_line(tape_, op),
                " gives a result of another form than was recorded, and than it declares");
    return;  // whoever has asked for it sees it (Matcher::wait_for_form)
  }
  keep_results(op, stack);
}

at::Tensor PlainRun::tensor(SlotId id) {
  if (!id.valid()) return {};
  const Slot& slot = tape_.slots[id.index()];
  const Block& block = tape_.blocks[slot.block.index()];
  const bool own = block.external && block.input < 0 && slot.origin == Slot::Origin::kExternal && !slot.moved;
  return own ? block.tensor : make_alias(storages_[slot.block.index()], slot.meta);
}

void PlainRun::push_arguments(const TapeOp& op, torch::jit::Stack& stack) {
  stack.insert(stack.end(), op.arguments.begin(), op.arguments.end());
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    const TensorRef& ref = op.tensors[i];
    if (ref.kind == TensorRef::Kind::kNone) continue;
    const bool shell = access_of(op, i) == Access::kNone;  // only its shape is looked at; its memory may be gone
    const auto operand = [&](SlotId id) {
      if (!id.valid() || !shell) return tensor(id);
      const Slot& slot = tape_.slots[id.index()];
      const Block& block = tape_.blocks[slot.block.index()];
      return make_shell(slot.meta, block.bytes, block.device);
    };
    if (ref.kind == TensorRef::Kind::kTensor) {
      stack[i] = operand(ref.slots[0]);
    } else if (ref.kind == TensorRef::Kind::kTensorList) {
      c10::List<at::Tensor> list;
      for (const SlotId slot : ref.slots) list.push_back(operand(slot));
      stack[i] = std::move(list);
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (const SlotId slot : ref.slots)
        list.push_back(slot.valid() ? std::optional<at::Tensor>(operand(slot)) : std::nullopt);
      stack[i] = std::move(list);
    }
  }
}

void PlainRun::keep_results(const TapeOp& op, const torch::jit::Stack& stack) {
  const auto keep = [&](SlotId id, const at::Tensor& result) {
    if (!id.valid()) return;
    const BlockId block = tape_.slots[id.index()].block;
    const bool made = std::find(op.creates.begin(), op.creates.end(), block) != op.creates.end();
    if (made && tape_.blocks[block.index()].owner == id) storages_[block.index()] = result.storage();
  };
  TORCH_CHECK(each_result(op, stack, keep), "stowage: an op gives a shorter list than was recorded");
}

void PlainRun::hand_over(Shells& shells, bool copies) {
  for (std::size_t b = 0; b < shells.size(); ++b) {
    if (tape_.blocks[b].external || !is_held(shells[b]) || !storages_[b]) continue;
    const std::size_t bytes = storages_[b].nbytes();
    const c10::Device where = storages_[b].device();
    at::DataPtr memory = copies ? c10::GetAllocator(where.type())->allocate(bytes) : at::DataPtr();
    if (!copies) {
      memory = std::move(storages_[b].unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
    } else if (bytes > 0) {  // by an operator, for which an eager budget brings back what it has let go
      const auto all = static_cast<std::int64_t>(bytes);
      byte_tensor(memory.get(), all, where).copy_(make_alias(storages_[b], flat(all)));
    }
    fill_shell(c10::Storage(shells[b]->lock()), std::move(memory), bytes);
  }
}

}  // namespace stowage::runtime
