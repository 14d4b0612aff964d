#include "runtime/evict/budget.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <span>

#include "runtime/evict/now.h"
#include "runtime/torch/split.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
void Budget::on_leaf(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpTraits& op = traits_of(handle);
  if (keys.has(c10::DispatchKey::Python)) {  // a mode or a subclass: its inner calls come here
    handle.redispatchBoxed(keys, stack);
  } else if (op.view || asleep_.load(std::memory_order_relaxed) || inside_unwatched_op()) {
    run_unseen(handle, keys, stack);
  } else if (!op.lists || !run_split(handle, op, keys, stack)) {
    run(handle, op, keys, stack);
  }
}

// A list op whose operands are not all there, or whose results may not all fit beside them, goes element by element.
bool Budget::run_split(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  Operands operands;
  collect(op, *stack, operands);
  std::int64_t bytes = 0;
  bool away = false;
  {
    const std::lock_guard lock(state_);
    for (const Operand& operand : operands) {
      if (operand.storage == nullptr) continue;
      const Value* value = value_in(operand.storage);
      away = away || (value != nullptr && !value->resident());
      if (operand.argument == 0) bytes += static_cast<std::int64_t>(operand.storage->nbytes());
    }
  }
  if (!away && bytes <= options_.limit_bytes - live_bytes()) return false;
  std::vector<torch::jit::Stack> parts = split_list_op(handle, *stack);
  if (parts.size() < 2) return false;
  {
    const std::lock_guard lock(state_);
    ++stats_.split_ops;
  }
  for (torch::jit::Stack& part : parts) run(handle, op, keys, &part);
  join_results(handle, parts, stack);
  return true;
}

// What a backward pass makes is used at once, or is a parameter's gradient; and what it was made from dies meanwhile,
// so that making it again would mean to run most of the step again. It is swapped or stays. (A backward pass that is
// itself recorded makes activations; and so does a checkpoint's forward inside one.)
bool Budget::worth_remembering() {
  return torch::autograd::get_current_graph_task_id() < 0 || c10::GradMode::is_enabled();
}

Budget::Running::Running(Budget& owner, const OpTraits& running)
    : budget(owner), lock(owner.state_), op(&running), next(owner.running_) {
  budget.running_ = this;
}

// However the op ends: its notes are let go of under the lock, as all that touches values.
Budget::Running::~Running() {
  if (!lock.owns_lock()) lock.lock();
  Running** link = &budget.running_;
  while (*link != nullptr && *link != this) link = &(*link)->next;
  if (*link == this) *link = next;  // a child made by fork() has forgotten it
  if (pinned) budget.unpin(values);
  values.clear();
  recipe = {};
  for (Written& w : written) {
    budget.state_.let_go_after(std::move(w.tensor));
    budget.state_.let_go_after(std::move(w.storage));
  }
  for (StoragePtr& storage : moved_on) budget.state_.let_go_after(std::move(storage));
}

void Budget::run(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const std::int64_t entered = now_ns();
  const PauseWatching beside_the_op;
  Operands operands;
  collect(op, *stack, operands);
  Running running(*this, op);
  std::int64_t took_ns = 0;
  try {
    bring_operands(op, operands, running);
    running.ready = true;
    begin_op(op, operands);
    const bool undoing = still_updating();
    bool rememberable = worth_remembering() && can_remember(op, *stack, operands);
    note_writes(operands, running, undoing);
    overwrite(op, operands, *stack, rememberable);
    if (rememberable && !all_small_in_place(op, operands)) {
      running.recipe = remember(*this, handle, op, *stack, operands);
      if (op.draws) running.recipe->generator = std::make_unique<GeneratorState>(GeneratorState::current());
    }
    running.lock.unlock();
    const std::int64_t away_ns = waited_ns();
    const std::int64_t start = now_ns();
    {
      const InKernel in_kernel;
      const PauseWatching::Resume watching(beside_the_op);
      run_unseen(handle, keys, stack);
    }
    took_ns = std::max<std::int64_t>(now_ns() - start - (waited_ns() - away_ns), 1);
    running.lock.lock();
  } catch (const c10::OutOfMemoryError&) {
    if (running.lock.owns_lock()) running.lock.unlock();
    const std::lock_guard no_recipe_runs(restoring_);
    running.lock.lock();
    if (undoing_) roll_back();
    throw;
  }
  take_notes(op, *stack, running, took_ns);
  ++stats_.ops;
  add_aside_ns(now_ns() - entered - took_ns);
}

// The op is over and its results are right. What fails now (there is no memory for a note, another thread has taken the
// room of a fetch) only leaves tensors unknown, which therefore stay, or copies that are made later.
void Budget::take_notes(const OpTraits& op, const torch::jit::Stack& stack, Running& running, std::int64_t took_ns) {
  try {
    note_results(op, stack, running.written, running.recipe, took_ns);
    if (running.pinned) unpin(running.values);
    running.pinned = false;
    running.values.clear();
    running.ready = false;
    running.recipe = {};
    if (timeline_.due()) record(Event::Kind::kLive, live_bytes(), &op);
    follow_advice();
  } catch (const std::exception&) {
    ++stats_.notes_lost;
  }
}

// All are there when this returns, and no recipe reads what the op writes. Whenever the lock was free, another thread
// may have written to an operand, so that it holds another value now: they are looked for again.
void Budget::bring_operands(const OpTraits& op, Operands& operands, Running& running) {
  const auto busy = [&] {
    return std::any_of(operands.begin(), operands.end(),
                       [](const Operand& o) { return o.written && o.value != nullptr && o.value->being_read > 0; });
  };
  const auto as_found = [&] {
    return std::all_of(operands.begin(), operands.end(),
                       [&](const Operand& o) { return o.value == nullptr || value_in(o.storage) == o.value; });
  };
  while (!find_values(op, operands, running) || busy()) {
    const bool all_there = std::all_of(running.values.begin(), running.values.end(),
                                       [](const Ref<Value>& value) { return there(*value); });
    running.lock.unlock();
    if (all_there) {
      const std::lock_guard until_it_has_run(restoring_);
      running.lock.lock();
      continue;
    }
    try {
      bring(running.values, 0);
      running.lock.lock();
      running.pinned = true;
    } catch (...) {
      running.lock.lock();
      if (as_found()) throw;
    }
  }
}

// Two ops that write to one storage at a time, each to its part of it: what is there then comes from both, and has no
// recipe.
void Budget::note_writes(Operands& operands, Running& running, bool undoing) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].written || operands[i].storage == nullptr) continue;
    Written written{*operands[i].tensor, StoragePtr::reclaim_copy(operands[i].storage), static_cast<std::int32_t>(i),
                    in_place_depth(operands[i])};
    for (Running* other = running_; other != nullptr; other = other->next) {
      if (other == &running) continue;
      for (Written& theirs : other->written) {
        if (theirs.storage == written.storage) theirs.contended = written.contended = true;
      }
    }
    running.written.push_back(std::move(written));
    if (undoing) save_for_undo(running.written.back());
  }
}

// Whose values are where. False when some must be brought back first.
bool Budget::find_values(const OpTraits& op, Operands& operands, Running& running) {
  bool all = true;
  if (running.pinned) unpin(running.values);
  running.pinned = false;
  running.values.clear();
  for (Operand& operand : operands) {
    if (operand.storage == nullptr || operand.shape_only) continue;
    operand.value = value_in(operand.storage);
    if (operand.value == nullptr) operand.value = meet(*operand.tensor, &op, false);
    if (operand.value == nullptr) continue;
    const Ref<Value> value(operand.value);
    if (std::find(running.values.begin(), running.values.end(), value) != running.values.end()) continue;
    all = all && there(*value);
    if (!value->small() && value->storage != nullptr && !value->known_outside) watch(*value->storage);
    running.values.push_back(value);
  }
  return all;
}

void Budget::begin_op(const OpTraits& op, const Operands& operands) {
  c10::SmallVector<ValueId, 8> reads;
  for (const Operand& operand : operands) {
    if (operand.value != nullptr && !operand.value->small() &&
        std::find(reads.begin(), reads.end(), operand.value->id) == reads.end()) {
      reads.push_back(operand.value->id);
    }
  }
  keeper_.op_begins(signature_of(op, operands), {reads.data(), reads.size()});
}

bool Budget::all_small_in_place(const OpTraits& op, const Operands& operands) {
  return op.writes != 0 && std::all_of(operands.begin(), operands.end(), [](const Operand& operand) {
           return operand.storage == nullptr || (operand.value != nullptr && operand.value->small());
         });
}

// Another thread's op reads it while its storage moves on. Whatever that holds from then on stays as long
// (pin_running()).
void Budget::tell_readers(Value& value) {
  for (Running* running = running_; running != nullptr; running = running->next) {
    if (!running->ready ||
        std::find(running->values.begin(), running->values.end(), Ref<Value>(&value)) == running->values.end())
      continue;
    if (StoragePtr held = torch_versions::hold(value.storage)) running->moved_on.push_back(std::move(held));
  }
}

// The storages that the op writes move on: what they held is a ghost, whose bytes are kept only where something dropped
// needs them.
void Budget::overwrite(const OpTraits& op, const Operands& operands, const torch::jit::Stack& stack,
                       bool& rememberable) {
  for (const Operand& operand : operands) {
    Value* value = operand.value;
    if (!operand.written || value == nullptr) continue;
    if (value->known_outside) {  // it has no past that a recipe reads, and must not be taken for a value that may leave
      rememberable = false;
      continue;
    }
    if (value->storage != nullptr) {
      if (running_->next != nullptr) tell_readers(*value);
      take_off(*value);
    }
    if (!value->recipe && !value->small() && !left_out(op, stack, operand) && !only_overwritten(operands, value))
      rememberable = false;
  }
}

// The op reads nothing of it.
bool Budget::only_overwritten(const Operands& operands, const Value* value) {
  return std::all_of(operands.begin(), operands.end(),
                     [&](const Operand& operand) { return operand.value != value || operand.overwritten; });
}

std::int16_t Budget::in_place_depth(const Operand& operand) {
  return operand.overwritten || operand.value == nullptr ? std::int16_t{0}
                                                         : static_cast<std::int16_t>(operand.value->in_place_depth + 1);
}

void Budget::note_results(const OpTraits& op, const torch::jit::Stack& stack, const WrittenTensors& written,
                          const Ref<Recipe>& recipe, std::int64_t took_ns) {
  c10::SmallVector<ValueId, 4> made;
  const bool remembered = recipe && complete(*recipe);
  const auto note = [&](const at::Tensor& tensor, std::int32_t position, bool again, std::int16_t in_place_depth) {
    c10::StorageImpl* storage = storage_of(tensor);
    if (storage == nullptr || value_in(storage) != nullptr) return;
    if (static_cast<std::int64_t>(storage->nbytes()) < kSmallBytes) return;  // met when something reads it
    Value* value = meet(tensor, &op, true);
    if (value == nullptr) return;
    made.push_back(value->id);
    value->in_place_depth = in_place_depth;
    if (again && remembered) give_recipe(*value, recipe, position, took_ns);
  };
  for (const Written& w : written) note(w.tensor, -1 - w.operand, !op.batch_norm && !w.contended, w.in_place_depth);
  c10::SmallVector<const at::Tensor*, 4> results;
  collect_results(op, stack, results);
  for (std::size_t i = 0; i < results.size(); ++i) note(*results[i], static_cast<std::int32_t>(i), true, 0);
  keeper_.op_ended(took_ns, {made.data(), made.size()});
}

// While the op ran, another thread may have written to what it read, and no note of the bytes was worth keeping.
bool Budget::complete(const Recipe& recipe) {
  const auto arguments = std::span(recipe.arguments.get(), static_cast<std::size_t>(recipe.argument_count));
  return std::none_of(arguments.begin(), arguments.end(), [](const Argument& argument) {
    return argument.kind == Argument::Kind::kValue && !argument.overwritten && !argument.value;
  });
}

void Budget::give_recipe(Value& value, const Ref<Recipe>& recipe, std::int32_t position, std::int64_t took_ns) {
  c10::SmallVector<ValueId, 8> parents;
  for (std::int32_t i = 0; i < recipe->argument_count; ++i) {
    const Value* parent = recipe->arguments[i].value.get();
    if (parent != nullptr && !parent->small() &&
        std::find(parents.begin(), parents.end(), parent->id) == parents.end()) {
      parents.push_back(parent->id);
    }
  }
  recipe->results.push_back({&value, position});
  value.recipe = recipe;
  try {
    table.recipe(value.id, took_ns, {parents.data(), parents.size()});
  } catch (...) {
    lose_recipe(value);
    throw;
  }
}

void Budget::record(Event::Kind kind, std::int64_t bytes, const OpTraits* op) {
  timeline_.add({now_ns() - entered_ns_, kind, bytes, op});
}

}  // namespace stowage::runtime::evict
