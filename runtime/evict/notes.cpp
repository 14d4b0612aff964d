// What is known of an op's operands before it runs, and of its results after.
//
//   before    written storages move on: what they held is a ghost, whose bytes are kept only where something dropped
//             needs them
//   after     results are met, with the recipe where there is one; then the keeper's advice is followed
#include <algorithm>

#include "runtime/evict/block.h"
#include "runtime/evict/ops.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

// The op reads nothing of it.
bool only_overwritten(const Operands& operands, const Value* value) {
  return std::all_of(operands.begin(), operands.end(),
                     [&](const Operand& operand) { return operand.value != value || operand.overwritten; });
}

std::int16_t in_place_depth(const Operand& operand) {
  return operand.overwritten || operand.value == nullptr ? std::int16_t{0}
                                                         : static_cast<std::int16_t>(operand.value->in_place_depth + 1);
}

}  // namespace

void Ops::begin_op(const OpTraits& op, const Operands& operands) {
  c10::SmallVector<ValueId, 8> reads;
  for (const Operand& operand : operands) {
    if (operand.value != nullptr && !operand.value->small() &&
        std::find(reads.begin(), reads.end(), operand.value->id) == reads.end()) {
      reads.push_back(operand.value->id);
    }
  }
  state_.keeper.op_begins(signature_of(op, operands), {reads.data(), reads.size()});
}

// Two ops that write to one storage at a time, each to its part of it: what is there then comes from both, and has no
// recipe.
void Ops::note_writes(const Operands& operands, Running& running, bool undoing) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].written || operands[i].storage == nullptr) continue;
    Written written{*operands[i].tensor, StoragePtr::reclaim_copy(operands[i].storage), static_cast<std::int32_t>(i),
                    in_place_depth(operands[i])};
    for (Running* other = state_.running; other != nullptr; other = other->next) {
      if (other == &running) continue;
      for (Written& theirs : other->written) {
        if (theirs.storage == written.storage) theirs.contended = written.contended = true;
      }
    }
    running.written.push_back(std::move(written));
    if (undoing) updates_.save(running.written.back().tensor);
  }
}

// Ops under way are writing to what this one reads: an interlude of theirs may see it before they have.
bool Ops::reads_what_changes(const Operands& operands) const {
  for (const Running* other = state_.running; other != nullptr; other = other->next) {
    for (const Written& written : other->written) {
      const auto reads = [&](const Operand& operand) { return operand.storage == written.storage.get(); };
      if (std::any_of(operands.begin(), operands.end(), reads)) return true;
    }
  }
  return false;
}

void Ops::overwrite(const OpTraits& op, const Operands& operands, const torch::jit::Stack& stack, bool& rememberable) {
  for (const Operand& operand : operands) {
    Value* value = operand.value;
    if (!operand.written || value == nullptr) continue;
    if (value->known_outside) {  // it has no past that a recipe reads, and must not be taken for a value that may leave
      rememberable = false;
      continue;
    }
    if (value->storage != nullptr) {
      tell_readers(*value);
      graph_.take_off(*value, rememberable);
    }
    const bool past_is_lost = value->small() ? !value->small_copy : !value->recipe;
    if (past_is_lost && !left_out(op, stack, operand) && !only_overwritten(operands, value)) rememberable = false;
  }
}

// Another thread's op reads it while its storage moves on. Whatever that holds from then on stays as long
// (pin_running()).
void Ops::tell_readers(const Value& value) {
  if (state_.running->next == nullptr) return;  // no other op is under way
  for (Running* running = state_.running; running != nullptr; running = running->next) {
    if (!running->ready || !running->uses(value)) continue;
    if (StoragePtr held = torch_versions::hold(value.storage)) running->moved_on.push_back(std::move(held));
  }
}

// An interlude, or another thread, has met it while it was written to: what it holds now is something else. Who reads it by
// that name is told.
void Ops::forget_met(const Written& written) {
  Value* met = value_in(written.storage.get());
  const bool still_its = met != nullptr && storage_of(written.tensor) == written.storage.get();
  if (!still_its || !met->resident() || met->known_outside) return;
  tell_readers(*met);
  graph_.take_off(*met);
}

// The op is over and its results are right. What fails now (there is no memory for a note, another thread has taken the
// room of a fetch) only leaves tensors unknown, which therefore stay, or copies that are made later.
void Ops::take_notes(const OpTraits& op, const torch::jit::Stack& stack, Running& running, std::int64_t took_ns) {
  try {
    note_results(op, stack, running, took_ns);
    if (running.pinned) unpin(state_, running.values);
    running.pinned = false;
    running.values.clear();
    running.ready = false;
    running.recipe = {};
    if (state_.timeline.due()) state_.record(Event::Kind::kLive, state_.live_bytes(), &op);
    ahead_.follow_advice();
  } catch (const std::exception&) {
    ++state_.stats.notes_lost;
  }
}

void Ops::note_results(const OpTraits& op, const torch::jit::Stack& stack, const Running& running,
                       std::int64_t took_ns) {
  c10::SmallVector<ValueId, 4> made;
  // While the op ran, another thread may have written to what it read, and no note of the bytes was worth keeping
  const bool remembered = running.recipe && complete(*running.recipe);
  const auto note = [&](const at::Tensor& tensor, std::int32_t position, bool again, std::int16_t in_place_depth) {
    c10::StorageImpl* storage = storage_of(tensor);
    if (storage == nullptr || value_in(storage) != nullptr) return;
    if (static_cast<std::int64_t>(storage->nbytes()) < kSmallBytes) return;  // met when something reads it
    Value* value = graph_.meet(tensor, &op, true);
    if (value == nullptr) return;
    made.push_back(value->id);
    value->in_place_depth = in_place_depth;
    if (again && remembered) graph_.give_recipe(*value, running.recipe, position, took_ns);
  };
  for (const Written& w : running.written) {
    forget_met(w);
    note(w.tensor, -1 - w.operand, !op.batch_norm && !w.contended, w.in_place_depth);
  }
  c10::SmallVector<const at::Tensor*, 4> results;
  collect_results(op, stack, results);
  for (std::size_t i = 0; i < results.size(); ++i) note(*results[i], static_cast<std::int32_t>(i), true, 0);
  state_.keeper.op_ended(took_ns, {made.data(), made.size()});
}

}  // namespace stowage::runtime::evict
