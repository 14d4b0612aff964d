#include "runtime/replay/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <chrono>

#include "runtime/record/ticks.h"
#include "runtime/replay/foreign_draws.h"
#include "runtime/replay/results.h"
#include "runtime/torch/collectives.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"
#include "stowage/error.h"

namespace stowage::runtime {

namespace {

c10::DataPtr new_memory(c10::Device device, std::int64_t bytes) {
  return c10::GetAllocator(device.type())->allocate(static_cast<std::size_t>(bytes));
}

c10::Storage storage_over(c10::DataPtr memory, c10::Device device, std::int64_t bytes) {
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes), std::move(memory),
          c10::GetAllocator(device.type()), /*resizable=*/true};
}

std::int64_t since_ns(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Executor::begin(const std::vector<at::Tensor>& inputs) {
  drop_results();
  leave_arena_to_results();
  if (!plan_.away.empty()) {  // they make room before the arena takes it
    if (rehearsal_ == nullptr)
      for (std::size_t i = 0; i < residents_.size(); ++i)
        if (away_[i]) host_.homes->take(*residents_[i].unsafeGetStorageImpl());
    host_.homes->forget_pages();
  }
  reserve();
  script_.reset_counters();
  learned_something_ = chain_surprised_ = foreign_draws_ = false;
  op_times_.clear();
  bind_inputs(inputs);
  make_results();
  if (keep_state_[0]) states_[0] = GeneratorState::current(tape_->generators);
  arena_->begin_use();
  begin_undo();
  if (looks_ || rehearsal_ != nullptr) traced_.assign(tape_->ops.size(), {});
  again_otherwise_.clear();
  do_not_repeat_.clear();
  doubtful_.assign(looks_ ? tape_->blocks.size() : 0, false);
  ran_on_doubtful_.assign(looks_ ? tape_->ops.size() : 0, false);
  if (paranoid_) watch_.emplace(*arena_);
}

// What the last step's results hold stays theirs, and this step takes other memory.
void Executor::leave_arena_to_results() {
  if (!arena_->has_results()) return;
  arena_->release();
  if (rehearsal_ == nullptr) arena_->note_results_outlive();
}

RunStats Executor::run(const std::vector<at::Tensor>& inputs, RunOptions options) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::AutoGradMode grad_mode_restorer(c10::GradMode::is_enabled());
  const auto start = std::chrono::steady_clock::now();
  RunStats stats;
  std::size_t next = 0;
  if (parts_) {
    next = parts_->next;
    stats = parts_->stats;
    set_generators(parts_->after);
    parts_.reset();
  } else {
    begin(inputs);
  }
  timed_.clear();
  if (options.time_ops) stopwatch_ = arena_->device().stopwatch();
  {
    // Dropped inside the armed script, so that the arena blocks are given back.
    const ArmScript armed(script_);
    struct DropAtEnd {
      Executor& executor;
      ~DropAtEnd() { executor.leave_step(); }
    } at_end{*this};
    try {
      torch::jit::Stack stack;
      while (next < instructions_.size()) {
        if (NotedPiece* const piece = piece_at(next, options)) {
          run_piece(*piece, options, stack, stats);
          next = piece->to;
        } else {
          run_step(next++, options, stack, stats);
        }
      }
      note_times();
      count_unserved();
      copy_results();
    } catch (...) {
      give_up(std::current_exception());
    }
  }
  if (stats.rescued_bytes > 0) std::fill(rescued_.begin(), rescued_.end(), std::nullopt);
  tape_->final_jump.make(states_, tape_->generators);
  if (!options.writes_counted && rehearsal_ == nullptr) {
    for (const BlockId block : counts_) {
      const Block& b = tape_->blocks[block.index()];
      const at::Tensor& tensor = b.input >= 0 ? inputs[static_cast<std::size_t>(b.input)] : b.tensor;
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();  // those count nothing
    }
  }
  stats.misses = script_.misses();
  stats.skipped = script_.skipped();
  stats.peak_bytes = script_.peak_bytes();
  stats.escaped_blocks = static_cast<std::int64_t>(script_.live_blocks());
  stats.wall_ns += since_ns(start);
  if (rehearsal_ == nullptr) ++runs_;
  saved_.clear();
  if (late_error_) std::rethrow_exception(std::exchange(late_error_, nullptr));
  return stats;
}

void Executor::run_step(std::size_t index, RunOptions options, torch::jit::Stack& stack, RunStats& stats) {
  save_before(index);
  do_step(index, options, stack, stats);
  restore_after(index);
}

void Executor::do_step(std::size_t index, RunOptions options, torch::jit::Stack& stack, RunStats& stats) {
  const Instruction& instruction = instructions_[index];
  before_writes(index);
  if (watch_) watch_->begin(own_ranges(index));
  const bool timed = stopwatch_ && instruction.op.valid();
  if (timed) stopwatch_->begin();
  if (!instruction.op.valid()) {
    start_swap(instruction);
  } else if (!options.learn) {
    call(instruction, stack);
  } else {
    events_.clear();
    {
      const WatchAllocations watch(events_, tape_->device.type());
      call(instruction, stack);
    }
    learn(instruction);
  }
  if (timed) {
    stopwatch_->end();
    timed_.push_back(index);
  }
  for (const std::size_t swap : instruction.finish) finish_swap(swap, stats);
  if (looks_ || (rehearsal_ != nullptr && instruction.is_replaced())) note_results(instruction);
  std::vector<ArenaWatch::Range> dead;
  if (watch_) {
    look_around(index);
    dead = own_ranges(index);
    for (const BlockId block : instruction.drop_blocks) {
      const c10::Storage& storage = storages_[block.index()];
      const std::int64_t from = storage ? static_cast<const char*>(storage.data()) - arena_->base() : -1;
      if (from >= 0 && from < arena_->bytes())
        dead.emplace_back(from, from + static_cast<std::int64_t>(storage.nbytes()));
    }
  }
  for (const BlockId block : instruction.drop_blocks) drop(block);
  if (watch_) poison_dead(dead);
}

// However the step ended: copies that are still under way are given up, a rehearsal's residents get their content back,
// and no tensor of the arena is left.
void Executor::leave_step() {
  abandon_copies();
  arena_->end_use();
  watch_.reset();
  stopwatch_.reset();
  if (rehearsal_ != nullptr) {
    for (std::size_t i = 0; i < rehearsal_->saved.size(); ++i) {
      if (rehearsal_->saved[i].content) restore_resident(*rehearsal_, i);
    }
  }
  drop_everything();
  arena_->abandon(script_.live_blocks());
}

namespace {

// While alive, the op's generator is as it was before an earlier draw; afterwards as it was found.
class DrawAgain {
 public:
  DrawAgain(const Tape& tape, const TapeOp& op, const GeneratorState& before)
      : part_(op.drawn_from), outer_(GeneratorState::current(tape.generators)) {
    before.restore(part_);
  }
  ~DrawAgain() { outer_.restore(part_); }
  DrawAgain(const DrawAgain&) = delete;
  DrawAgain& operator=(const DrawAgain&) = delete;

 private:
  GeneratorPart part_;
  GeneratorState outer_;
};

}  // namespace

void Executor::call(const Instruction& instruction, torch::jit::Stack& stack) {
  const TapeOp& op = tape_->op(instruction.op);
  for (const BlockId block : instruction.renew) drop(block);
  stack.clear();
  push_arguments(instruction, stack);
  const auto order = static_cast<std::size_t>(op.random_order);
  if (op.draws() && instruction.again) {
    const DrawAgain same_numbers(*tape_, op, *before_draw_[order]);
    call_surely(instruction, stack);
  } else {
    if (!instruction.again) op.jump.make(states_, tape_->generators);
    if (op.draws() && runs_again_[order]) before_draw_[order] = GeneratorState::current(tape_->generators);
    call_surely(instruction, stack);
    if (op.random_order >= 0 && keep_state_[order + 1]) states_[order + 1] = GeneratorState::current(tape_->generators);
  }
  if (instruction.tells) {
    numbers_[instruction.op] = stack.back();
    if (parts_) told_ = stack;
  }
  if (op.form != TapeOp::Form::kKnown && !has_its_form(op, stack)) return stack.clear();
  if (instruction.tile < 0) keep_results(op, stack);
  for (const auto& [block, offset] : instruction.placed) {
    if (const c10::Storage& storage = storages_[block.index()]) script_.vouch(storage.data(), offset);
  }
  stack.clear();
  if (op.form != TapeOp::Form::kKnown) let_go_of_held(op);
}

void Executor::call_kernel(const Instruction& instruction, torch::jit::Stack& stack) {
  const TapeOp& op = tape_->op(instruction.op);
  const SettingsScope as_recorded(tape_->settings, op.settings);
  const ForeignDraws draws(*tape_, op, rehearsal_ != nullptr || parts_, foreign_draws_);
  if (c10::GradMode::is_enabled() != op.grad_mode) c10::GradMode::set_enabled(op.grad_mode);
  const std::size_t own = instruction.chain >= 0 ? 1 : instruction.script_to - instruction.script_from;
  script_.begin_op(allocations_.data() + instruction.script_from, own);
  if (fails_in_ >= 0) fail_as_injected();
  if (instruction.tile >= 0) {
    call_tiles(instruction);
  } else if (instruction.chain >= 0) {
    call_chain(instruction, stack);
  } else if (instruction.product >= 0) {
    call_product(instruction, stack);
  } else if (is_collective(op.handle)) {
    run_collective(op.handle, &stack);
  } else {
    op.handle.callBoxed(&stack);
  }
  const std::int64_t otherwise = script_.misses() + script_.skipped();
  script_.end_op();
  if (instruction.product >= 0 && script_.misses() + script_.skipped() > otherwise) chain_surprised_ = true;
}

void Executor::push_arguments(const Instruction& instruction, torch::jit::Stack& stack) {
  if (instruction.chain >= 0 || instruction.tile >= 0) return;  // each member has its own
  const TapeOp& op = tape_->op(instruction.op);
  stack.insert(stack.end(), op.arguments.begin(), op.arguments.end());
  for (const Argument& argument : instruction.arguments) {
    c10::IValue& value = stack[argument.position];
    switch (argument.kind) {
      case TensorRef::Kind::kTensor: value = tensor(argument.operands[0]); break;
      case TensorRef::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        list.reserve(argument.operands.size());
        for (const Operand& operand : argument.operands) list.push_back(tensor(operand));
        value = std::move(list);
        break;
      }
      case TensorRef::Kind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(argument.operands.size());
        for (const Operand& operand : argument.operands) {
          list.push_back(operand.slot.valid() ? std::optional<at::Tensor>(tensor(operand)) : std::nullopt);
        }
        value = std::move(list);
        break;
      }
      case TensorRef::Kind::kNone: break;
    }
  }
}

const at::Tensor& Executor::tensor(const Operand& operand) {
  static const at::Tensor undefined;
  if (!operand.slot.valid()) return undefined;
  if (operand.shell) return shells_[operand.slot.index()];
  at::Tensor& built = tensors_[operand.slot.index()];
  if (!built.defined() || tape_->slots[operand.slot.index()].moved) built = tensor_of(operand.slot);
  return built;
}

void Executor::keep_results(const TapeOp& op, torch::jit::Stack& stack) {
  const auto keep = [&](SlotId id, const at::Tensor& result) {
    if (!id.valid()) return;
    const Slot& slot = tape_->slots[id.index()];
    if (slot.origin != Slot::Origin::kResult || tape_->blocks[slot.block.index()].owner != id) return;
    if (std::find(op.creates.begin(), op.creates.end(), slot.block) == op.creates.end()) return;
    tensors_[id.index()] = result;
    storages_[slot.block.index()] = result.storage();
  };
  TORCH_CHECK(each_result(op, stack, keep), "stowage: an op gives a shorter list than was recorded");
}

void Executor::learn(const Instruction& instruction) {
  if (instruction.again || instruction.is_replaced()) return;  // as in its first run; as it was planned
  TapeOp& op = tape_->op(instruction.op);
  const std::vector<std::int64_t> before = op.allocations;
  std::vector<std::int64_t> now;
  for (const AllocationEvent& event : events_) {
    if (!event.is_free) now.push_back(event.bytes);
  }
  if (now == before) return;
  learned_something_ = true;
  std::vector<const void*> data;
  for (const BlockId block : op.creates)
    data.push_back(storages_[block.index()] ? storages_[block.index()].data() : nullptr);
  take_inside(*tape_, op, events_, data);
}

at::Tensor Executor::tensor_of(SlotId id) const {
  const Slot& slot = tape_->slots[id.index()];
  return make_alias(storages_[slot.block.index()], slot.meta);
}

bool Executor::is_result(std::size_t i) const {
  const SlotId id = tape_->returned[i];
  if (!id.valid()) return false;
  const Block& block = tape_->blocks[tape_->slots[id.index()].block.index()];
  return !block.external || block.of_python;
}

bool Executor::has_staying_results() const {
  return std::find(lowered_.stays.begin(), lowered_.stays.end(), true) != lowered_.stays.end();
}

at::Tensor Executor::output(std::size_t i, const std::vector<at::Tensor>& inputs) const {
  const SlotId id = tape_->returned[i];
  if (!id.valid()) return {};
  const Slot& slot = tape_->slots[id.index()];
  if (is_result(i)) {
    const auto found = std::find_if(results_.begin(), results_.end(),
                                    [&](const Result& result) { return result.block == slot.block; });
    return make_tensor(found->storage, slot.meta);
  }
  const Block& block = tape_->blocks[slot.block.index()];
  const at::Tensor& owner = block.input >= 0 ? inputs[static_cast<std::size_t>(block.input)] : block.tensor;
  if (slot.origin == Slot::Origin::kExternal && !slot.moved) return owner;
  TensorMeta meta = slot.meta;
  if (block.input >= 0)
    meta.storage_offset += span_bytes(owner).first / static_cast<std::int64_t>(meta.dtype.itemsize());
  return make_tensor(owner.storage(), meta);
}

void Executor::find_results() {
  for (std::size_t i = 0; i < tape_->returned.size(); ++i) {
    if (!is_result(i)) continue;
    const BlockId block = tape_->slots[tape_->returned[i].index()].block;
    if (position_among_results(block) < 0)
      result_blocks_.emplace_back(block, i >= tape_->returned.size() - tape_->kept);
  }
}

std::int32_t Executor::position_among_results(BlockId block) const {
  const auto found = std::find_if(result_blocks_.begin(), result_blocks_.end(),
                                  [&](const auto& result) { return result.first == block; });
  return found == result_blocks_.end() ? -1 : static_cast<std::int32_t>(found - result_blocks_.begin());
}

// As planned: what runs have taught the tape since is for the next plan.
std::int64_t Executor::result_bytes(BlockId block) const {
  return lowered_.in_result[block.index()] ? lowered_.graph.buffer(lowered_.buffer[block.index()]).bytes
                                           : tape_->blocks[block.index()].bytes;
}

void Executor::make_results() {
  drop_results();
  std::vector<c10::DataPtr> in_place(result_blocks_.size());
  for (const auto& [block, kept] : result_blocks_) {
    if (lowered_.stays[block.index()]) {
      results_.push_back({block, kept, {}});
      continue;
    }
    const c10::Device device = tape_->blocks[block.index()].device;
    const std::int64_t bytes = result_bytes(block);
    c10::DataPtr memory = new_memory(device, bytes);
    c10::Storage storage;
    if (lowered_.in_result[block.index()]) {
      in_place[results_.size()] = std::move(memory);
    } else {
      storage = storage_over(std::move(memory), device, bytes);
    }
    results_.push_back({block, kept, std::move(storage)});
  }
  script_.set_results(std::move(in_place));
}

void Executor::copy_results() {
  // What an accelerator's copy is about to fill, unless the host has waited for it.
  const auto on_host = [&](const Result& r) { return tape_->blocks[r.block.index()].device != tape_->device; };
  if (std::any_of(results_.begin(), results_.end(), on_host)) arena_->device().wait();
  for (std::size_t i = 0; i < results_.size(); ++i) {
    Result& result = results_[i];
    const c10::Storage& from = storages_[result.block.index()];
    if (lowered_.stays[result.block.index()]) {
      const auto bytes = static_cast<std::int64_t>(from.nbytes());
      const bool planned = arena_->holds(from.data());  // else it has memory of its own
      result.storage = planned ? storage_over(arena_->stay(from.mutable_data(), bytes), from.device(), bytes) : from;
      continue;
    }
    if (lowered_.in_result[result.block.index()]) {
      c10::DataPtr unused = script_.leave_result(i);
      if (!in_arena(from.data())) {  // made there, or in memory of its own
        result.storage = from;
        continue;
      }
      const std::int64_t bytes = result_bytes(result.block);
      if (!unused) unused = new_memory(from.device(), bytes);
      result.storage = storage_over(std::move(unused), from.device(), bytes);
    }
    const std::size_t bytes = std::min(result.storage.nbytes(), from.nbytes());
    device_at(from.device()).copy(result.storage.mutable_data(), from.data(), static_cast<std::int64_t>(bytes));
  }
}

void Executor::drop_results() {
  results_.clear();
  script_.set_results({});
}

void Executor::drop_returned() {
  std::erase_if(results_, [](const Result& result) { return !result.kept; });
}

void Executor::drop(BlockId block) {
  for (const SlotId slot : slots_of_[block.index()]) tensors_[slot.index()].reset();
  storages_[block.index()] = c10::Storage();
}

void Executor::drop_everything() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!permanent_[i]) tensors_[i].reset();
  }
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    if (!tape_->blocks[i].external || tape_->blocks[i].input >= 0 || away_[i]) storages_[i] = c10::Storage();
  }
}

}  // namespace stowage::runtime
