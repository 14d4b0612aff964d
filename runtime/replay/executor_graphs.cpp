// Pieces of a plan as graphs of the device: kernels that it notes once, and runs again in one piece.
//
//   plan      embed │ ln  mm  gelu  mm … │ dropout │ ln  mm … │ nll_loss │ … backward … │ copy │ adam  adam  adam
//   graphs          └──────── 1 ─────────┘         └─── 2 ────┘          └────── 3 ─────┘
//   a call     run     launch                run      launch      run        launch        run    run   run   run
//
// Addresses are planned: each call runs the same kernels over the same memory, so asking for them one by one can be saved.
// In a graph are PyTorch's own kernels that read and write the arena, parameters and buffers, or make gradients. Not in one:
// what reads an argument or tells Python something, other results, draws of random numbers, copies to the host and their
// ends, collectives, and updates of optimizers, whose numbers are others in each call. Where a parameter or a gradient lies
// elsewhere now, or a number is another one, or an operator before has taken memory otherwise than planned, the piece's
// kernels are asked for one by one; where that goes on, they are noted anew.
//
// Like a plan, graphs are not believed: a rehearsal notes and runs them, the step runs without them, and they are used
// from then on if both have left the same bits. What the device cannot note stays outside, and the others are noted anew.
//
// Two rehearsals, and two more for each kind of kernel that cannot be noted. A launch costs O(tensors outside, numbers).
// Graphs of CUDA's are described in: A. Gray, "Getting Started with CUDA Graphs", 2019.
#include <algorithm>
#include <exception>
#include <set>

#include "runtime/memory/what.h"
#include "runtime/replay/arguments.h"
#include "runtime/replay/executor.h"
#include "runtime/torch/op_facts.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

using Stage = NotedGraphs::Stage;

constexpr std::size_t kLeastOps = 4;  // of a piece: a launch costs what some kernels do
constexpr int kMostFailures = 8;      // kinds of kernels that could not be noted
constexpr int kMostTimes = 4;  // that a plan's graphs are noted; the last time, only what lies in the arena or lasts
constexpr int kUnservedCalls = 4;  // in a row, after which they are noted anew

bool holds_tensor(const c10::IValue& value) {
  return (value.isTensor() && !is_number_tensor(value)) || value.isTensorList() || value.isStorage();
}

const void* place_of(const c10::Storage& storage) {
  return storage ? storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() : nullptr;
}

}  // namespace

bool Executor::may_be_noted(const Instruction& instruction) const {
  if (!instruction.op.valid() || instruction.is_replaced() || instruction.tells || !instruction.finish.empty())
    return false;
  const bool last_time = graphs_->times == kMostTimes;
  const TapeOp& op = tape_->op(instruction.op);
  if (op.section >= 0 || op.varies || op.form != TapeOp::Form::kKnown || op.random_order >= 0 || !op.jump.to.empty())
    return false;
  if (is_foreign(op.handle) || is_custom(op.handle) || talks_to_other_processes(op.handle)) return false;
  if (op.handle.hasTag(at::Tag::data_dependent_output) || op.handle.hasTag(at::Tag::dynamic_output_shape)) return false;
  if (std::any_of(op.arguments.begin(), op.arguments.end(), holds_tensor)) return false;
  for (const Argument& argument : instruction.arguments) {
    for (const Operand& operand : argument.operands) {
      if (!operand.slot.valid() || operand.shell) continue;
      const Slot& slot = tape_->slots[operand.slot.index()];
      const Block& block = tape_->blocks[slot.block.index()];
      const bool external_of_call = block.external && !block.tensor.defined();
      if (block.device != tape_->device || external_of_call || slot.moved || away(slot.block)) return false;
    }
  }
  return std::all_of(op.creates.begin(), op.creates.end(), [&](BlockId block) {
    const bool gradient = lowered_.in_result[block.index()] && graphs_->gradients[block.index()] && !last_time;
    return tape_->blocks[block.index()].device == tape_->device && (gradient || position_among_results(block) < 0);
  });
}

// The longest stretches of what may be noted.
void Executor::find_pieces() {
  graphs_->pieces.clear();
  graphs_->piece_at.assign(instructions_.size(), -1);
  graphs_->ops = 0;
  for (std::size_t from = 0; from < instructions_.size();) {
    std::size_t to = from;
    while (to < instructions_.size() && !graphs_->cannot[to] && may_be_noted(instructions_[to])) ++to;
    if (to - from >= kLeastOps) {
      graphs_->piece_at[from] = static_cast<std::int32_t>(graphs_->pieces.size());
      NotedPiece& piece = graphs_->pieces.emplace_back();
      piece.from = from;
      piece.to = to;
      graphs_->ops += static_cast<std::int64_t>(to - from);
    }
    from = std::max(to, from + 1);
  }
}

bool Executor::wants_graphs() const {
  if (parts_ || looks_ || paranoid_) return false;               // the step has begun, or each kernel is looked at
  if (!graphs_ || graphs_->stage == Stage::kNoted) return true;  // the run that was to follow did not come to its end
  return graphs_->stage == Stage::kUsed && graphs_->unserved_calls >= kUnservedCalls && graphs_->times < kMostTimes;
}

void Executor::note_graphs(const std::vector<at::Tensor>& inputs, const std::vector<std::size_t>& gradients) {
  const int times = graphs_ ? graphs_->times : 0;
  graphs_ = std::make_unique<NotedGraphs>();
  graphs_->times = times + 1;
  graphs_->device = arena_->device().graphs();
  graphs_->cannot.assign(instructions_.size(), false);
  graphs_->gradients.assign(tape_->blocks.size(), false);
  for (const bool is : {true, false}) {  // where it is returned as something else, too, it is none
    for (std::size_t i = 0; i < tape_->returned.size(); ++i) {
      const bool listed = std::find(gradients.begin(), gradients.end(), i) != gradients.end();
      if (is_result(i) && listed == is) graphs_->gradients[tape_->slots[tape_->returned[i].index()].block.index()] = is;
    }
  }
  if (!graphs_->device) return refuse_graphs("there are no graphs on " + tape_->device.str());
  for (int failures = 0;; ++failures) {
    find_pieces();
    if (graphs_->pieces.empty())
      return refuse_graphs(graphs_->refusal.empty()
                               ? "no " + std::to_string(kLeastOps) + " kernels in a row can be noted"
                               : graphs_->refusal);
    try {
      graphs_->stage = Stage::kWarming;
      rehearse(inputs, {}, /*learn=*/false);
      graphs_->stage = Stage::kNoting;
      graphs_->noted_now.reset();
      graphs_->state = rehearse(inputs, {}, /*learn=*/false).second;
      break;
    } catch (const std::exception& error) {
      if (graphs_->stage != Stage::kNoting || !graphs_->noted_now) return refuse_graphs(what_of(error));
      leave_out(what_of(error));
      if (failures + 1 == kMostFailures) return refuse_graphs(graphs_->refusal);
    }
  }
  graphs_->arena = arena_->base();
  graphs_->results = digests_of_output(inputs);
  graphs_->stage = Stage::kNoted;
}

// What the device could not note, and its like; where it told so at a piece's end, the whole piece.
void Executor::leave_out(const std::string& why) {
  const NotedPiece& piece = graphs_->pieces[*graphs_->noted_now];
  const std::size_t at = std::min(graphs_->at, piece.to - 1);
  const TapeOp& op = tape_->op(instructions_[at].op);
  graphs_->refusal = name_with_line(*tape_, op) + " cannot be noted: " + why;
  if (graphs_->at == piece.to) {
    graphs_->refusal = "what ends with " + graphs_->refusal;
    for (std::size_t i = piece.from; i < piece.to; ++i) graphs_->cannot[i] = true;
    return;
  }
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    const TapeOpId other = instructions_[i].op;
    if (other.valid() && full_name(tape_->op(other).handle) == full_name(op.handle)) graphs_->cannot[i] = true;
  }
}

void Executor::refuse_graphs(const std::string& why) {
  graphs_->stage = Stage::kRefused;
  graphs_->pieces.clear();
  graphs_->piece_at.clear();
  graphs_->device.reset();
  graphs_->ops = 0;
  graphs_->refusal = why;
}

void Executor::try_graphs(const std::vector<at::Tensor>& inputs) {
  if (!graphs_ || graphs_->stage != Stage::kNoted) return;
  if (state(inputs, {}) != graphs_->state || digests_of_output(inputs) != graphs_->results)
    return refuse_graphs("the kernels of its graphs gave other bits than the same kernels one by one");
  graphs_->stage = Stage::kUsed;
}

std::vector<Digest> Executor::digests_of_output(const std::vector<at::Tensor>& inputs) const {
  std::vector<Digest> digests;
  for (std::size_t i = 0; i < tape_->returned.size(); ++i)
    if (is_result(i)) digests.push_back(digest(output(i, inputs)));
  return digests;
}

NotedPiece* Executor::piece_at(std::size_t index, RunOptions options) {
  if (!graphs_ || graphs_->piece_at.empty() || graphs_->piece_at[index] < 0) return nullptr;
  NotedPiece& piece = graphs_->pieces[static_cast<std::size_t>(graphs_->piece_at[index])];
  if (rehearsal_ != nullptr)
    return graphs_->stage == Stage::kWarming || graphs_->stage == Stage::kNoting ? &piece : nullptr;
  const bool watched = options.learn || options.time_ops || looks_ || paranoid_ || fails_in_ >= 0;
  if (graphs_->stage != Stage::kUsed || watched) return nullptr;
  if (still_serves(piece)) return &piece;
  graphs_->unserved = true;
  return nullptr;
}

void Executor::count_unserved() {
  if (!graphs_ || rehearsal_ != nullptr) return;
  graphs_->unserved_calls = std::exchange(graphs_->unserved, false) ? graphs_->unserved_calls + 1 : 0;
}

bool Executor::still_serves(const NotedPiece& piece) const {
  return graphs_->arena == arena_->base() && script_.as_planned() && piece.graph->holds() &&
         std::all_of(piece.outside.begin(), piece.outside.end(),
                     [&](const NotedPiece::Outside& o) { return place_of(storages_[o.block.index()]) == o.at; }) &&
         std::all_of(piece.results.begin(), piece.results.end(),
                     [&](const NotedPiece::Result& r) {
                       return script_.result_at(static_cast<std::size_t>(r.position)) == r.at;
                     }) &&
         std::none_of(piece.outside_slots.begin(), piece.outside_slots.end(),
                      [&](SlotId slot) { return tape_->slots[slot.index()].moved; }) &&
         std::all_of(piece.numbers.begin(), piece.numbers.end(), [&](const NotedPiece::Number& n) {
           return same_value(tape_->op(n.op).arguments[n.argument], n.value);
         });
}

void Executor::run_piece(NotedPiece& piece, RunOptions options, torch::jit::Stack& stack, RunStats& stats) {
  if (rehearsal_ == nullptr) return launch(piece);
  for (std::size_t i = piece.from; i < piece.to; ++i) save_before(i);
  const auto work = [&] {
    for (std::size_t i = piece.from; i < piece.to; ++i) do_step(i, options, stack, stats);
  };
  const auto noted_work = [&] {
    const std::int64_t misses = script_.misses();
    for (graphs_->at = piece.from; graphs_->at < piece.to; ++graphs_->at) {
      do_step(graphs_->at, options, stack, stats);
      if (script_.misses() > misses) throw Error("it takes memory beside the arena");
    }
  };
  if (graphs_->stage == Stage::kWarming) {
    graphs_->device->warm_up(work);
  } else {
    if (!script_.as_planned()) throw Error("an operator has taken memory that was not planned");
    graphs_->noted_now = static_cast<std::size_t>(&piece - graphs_->pieces.data());
    graphs_->at = piece.from;
    note_what_is_given(piece);
    note_what_it_leaves(piece, [&] { piece.graph = graphs_->device->note(noted_work); });
    graphs_->noted_now.reset();
    piece.graph->replay();
  }
  for (std::size_t i = piece.from; i < piece.to; ++i) restore_after(i);
}

void Executor::note_what_is_given(NotedPiece& piece) const {
  std::set<SlotId> slots;
  std::set<BlockId> blocks;
  for (std::size_t i = piece.from; i < piece.to; ++i) {
    const TapeOp& op = tape_->op(instructions_[i].op);
    for (std::size_t a = 0; a < op.arguments.size(); ++a) {
      const bool given =
          op.tensors[a].kind == TensorRef::Kind::kNone && is_number_of_the_same_kind(op, a, op.arguments[a]);
      if (given) piece.numbers.push_back({instructions_[i].op, a, op.arguments[a]});
    }
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& operand : argument.operands) {
        if (!operand.slot.valid() || operand.shell) continue;
        const BlockId block = tape_->slots[operand.slot.index()].block;
        if (!storages_[block.index()]) continue;  // the piece makes it
        blocks.insert(block);
        if (tape_->blocks[block.index()].external) slots.insert(operand.slot);
      }
    }
  }
  piece.outside_slots.assign(slots.begin(), slots.end());
  for (const BlockId block : blocks) piece.outside.push_back({block, place_of(storages_[block.index()])});
}

template <class Note>
void Executor::note_what_it_leaves(NotedPiece& piece, const Note& note) {
  std::vector<bool> there(storages_.size());
  for (std::size_t b = 0; b < storages_.size(); ++b) there[b] = static_cast<bool>(storages_[b]);
  const std::int64_t live_bytes = script_.live_bytes();
  const std::int64_t peak_bytes = script_.restart_peak();
  note();
  piece.peak_bytes = script_.peak_bytes() - live_bytes;
  script_.resume_peak(peak_bytes);
  std::set<BlockId> ends, begins;
  for (std::size_t i = piece.from; i < piece.to; ++i) {
    const TapeOp& op = tape_->op(instructions_[i].op);
    for (const BlockId block : op.creates) {
      if (there[block.index()]) ends.insert(block);
      begins.insert(block);
    }
    for (const BlockId block : instructions_[i].drop_blocks) {
      if (begins.erase(block) == 0) ends.insert(block);
    }
  }
  piece.ends.assign(ends.begin(), ends.end());
  const auto* const base = static_cast<const char*>(static_cast<const void*>(arena_->base()));
  for (const BlockId block : begins) {
    const c10::Storage& storage = storages_[block.index()];
    if (!storage) continue;
    const auto bytes = static_cast<std::int64_t>(storage.nbytes());
    const auto* const at = static_cast<const char*>(place_of(storage));
    if (lowered_.in_result[block.index()]) {
      const std::int32_t position = position_among_results(block);
      piece.results.push_back({position, at});
      piece.begins.push_back({block, {bytes, 0, position, false}});
    } else {
      if (bytes > 0 && !arena_->holds(at)) throw Error("a kernel has made its result beside the arena");
      piece.begins.push_back({block, {bytes, bytes > 0 ? at - base : 0, PlannedAllocation::kNoResult, false}});
    }
  }
}

// The host's part of a piece: what its kernels write first is saved, and its placements begin and end.
void Executor::launch(const NotedPiece& piece) {
  for (std::size_t i = piece.from; i < piece.to; ++i) before_writes(i);
  script_.count_beside(piece.peak_bytes, 0, 0);
  for (const BlockId block : piece.ends) drop(block);
  c10::Allocator* const allocator = c10::GetAllocator(tape_->device.type());
  for (const auto& [block, allocation] : piece.begins) {
    const auto bytes = static_cast<std::size_t>(allocation.bytes);
    script_.begin_op(&allocation, bytes == 0 ? 0 : 1);
    storages_[block.index()] =
        c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                     /*resizable=*/true);
    script_.end_op(/*takes_all=*/true);
    if (allocation.result != PlannedAllocation::kNoResult || bytes == 0) continue;
    const void* const at = place_of(storages_[block.index()]);
    if (at != arena_->base() + allocation.offset) throw Error("what a graph makes has no room where it lies");
    script_.vouch(at, allocation.offset);
  }
  piece.graph->replay();
}

}  // namespace stowage::runtime
