#include "runtime/evict/ops.h"

#include <algorithm>
#include <utility>

#include "runtime/evict/block.h"
#include "runtime/memory/allocator.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/split.h"

namespace stowage::runtime::evict {
namespace {

bool all_small_in_place(const OpTraits& op, const Operands& operands) {
  return op.writes != 0 && std::all_of(operands.begin(), operands.end(), [](const Operand& operand) {
           return operand.storage == nullptr || (operand.value != nullptr && operand.value->small());
         });
}

bool is_nested(const c10::IValue& value) { return value.isTensor() && value.toTensor().is_nested(); }

}  // namespace

void Ops::on_leaf(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpTraits& op = traits_of(handle);
  awake_.thread_has_an_op();
  keep_parts(*stack, op.arguments);
  if (keys.has(c10::DispatchKey::Python)) {  // a mode or a subclass: its inner calls come here
    handle.redispatchBoxed(keys, stack);
  } else if (op.view || awake_.asleep() || awake_.inside_unwatched_op()) {
    run_unseen(handle, keys, stack);
  } else if (!state_.home_stream->is_current()) {
    run_elsewhere(handle, op, keys, stack);
  } else if (!op.lists || !run_split(handle, op, keys, stack)) {
    run(handle, op, keys, stack);
  }
  keep_parts(*stack, op.returns);
}

// A sparse tensor has no storage: nobody sees who reads its indices and values. They are there, and never leave again. Nor does
// what lies below a nested tensor, which has no sizes that a recipe could keep.
void Ops::keep_parts(const torch::jit::Stack& stack, std::size_t count) {
  if (awake_.asleep()) return;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!is_sparse(stack[i]) && !is_nested(stack[i])) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    const std::vector<at::Tensor> parts = is_nested(stack[i]) ? std::vector{tensor} : parts_of_sparse(tensor);
    const auto keep = [&] { std::ranges::for_each(parts, [&](const at::Tensor& part) { outside_.restore(part); }); };
    state_.home_stream->is_current() ? keep() : state_.home_stream->run(keep);
  }
}

bool Ops::run_split(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  Operands operands;
  collect(op, *stack, operands);
  std::int64_t bytes = 0;
  bool away = false;
  {
    const std::lock_guard lock(state_.lock);
    for (const Operand& operand : operands) {
      if (operand.storage == nullptr) continue;
      const Value* value = value_in(operand.storage);
      away = away || (value != nullptr && !value->resident());
      if (operand.argument == 0) bytes += static_cast<std::int64_t>(operand.storage->nbytes());
    }
  }
  if (!away && bytes <= state_.options.limit_bytes - state_.live_bytes()) return false;
  std::vector<torch::jit::Stack> parts = split_list_op(handle, *stack);
  if (parts.size() < 2) return false;
  {
    const std::lock_guard lock(state_.lock);
    ++state_.stats.split_ops;
  }
  const OnPieces whoever_sees_them_next;
  for (torch::jit::Stack& part : parts) run(handle, op, keys, &part);
  join_results(handle, parts, stack);
  return true;
}

// On another stream than the budget's. What it uses comes back in the order of the budget's stream, and stays from then
// on; its results are met when the budget's stream uses them.
void Ops::run_elsewhere(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  Operands operands;
  collect(op, *stack, operands);
  state_.home_stream->run([&] {
    for (const Operand& operand : operands) {
      if (operand.storage != nullptr && !operand.shape_only) outside_.restore(*operand.tensor);
    }
  });
  for (const Operand& operand : operands) {
    if (operand.storage != nullptr) state_.device.used_here(*operand.storage);
  }
  const InKernel in_kernel;
  run_unseen(handle, keys, stack);
}

void Ops::run(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) {
  const std::int64_t entered = now_ns();
  const PauseWatching beside_the_op;
  const owners::Unasked ours;
  Operands operands;
  collect(op, *stack, operands);
  Running running(state_, op);
  std::int64_t took_ns = 0;
  std::int64_t kernel_ns = 0;  // as the host sees it
  try {
    bring_operands(op, operands, running);
    running.ready = true;
    begin_op(op, operands);
    const bool undoing = updates_.undoing();
    bool rememberable = worth_remembering() && can_remember(op, *stack, operands) &&
                        !all_small_in_place(op, operands) && !reads_what_changes(operands);
    note_writes(operands, running, undoing);
    overwrite(op, operands, *stack, rememberable);
    if (rememberable) {
      running.recipe = remember(graph_, handle, op, *stack, operands, settings());
      if (op.draws) running.recipe->generator = std::make_unique<GeneratorState>(GeneratorState::current());
    }
    const std::uint64_t signature = state_.on_host() ? 0 : signature_of(op, operands);
    const bool timed = !state_.on_host() && !costs_.is_measured(signature);
    running.lock.unlock();
    if (timed) state_.device.wait();
    const std::int64_t away_ns = waited_ns();
    const std::int64_t start = now_ns();
    {
      const InKernel in_kernel;
      const PauseWatching::Resume watching(beside_the_op);
      const owners::Asked theirs;
      run_unseen(handle, keys, stack);
    }
    if (timed) state_.device.wait();
    const std::int64_t end = now_ns();
    took_ns = std::max<std::int64_t>(end - start - (waited_ns() - away_ns), 1);
    kernel_ns = took_ns;
    running.lock.lock();
    if (timed) costs_.measured(signature, took_ns);
    if (!state_.on_host()) took_ns = costs_.of(signature);
    if (running.recipe) running.recipe->cost_ns = took_ns;
  } catch (const c10::OutOfMemoryError&) {
    if (running.lock.owns_lock()) running.lock.unlock();
    const std::lock_guard no_recipe_runs(state_.restoring);
    running.lock.lock();
    updates_.roll_back();
    throw;
  }
  take_notes(op, *stack, running, took_ns);
  ++state_.stats.ops;
  add_aside_ns(now_ns() - entered - kernel_ns);
}

// Those of now. Under the lock.
const std::shared_ptr<const KernelSettings>& Ops::settings() {
  const KernelSettings now = KernelSettings::now();
  if (settings_ == nullptr || *settings_ != now) settings_ = std::make_shared<const KernelSettings>(now);
  return settings_;
}

// All are there when this returns, and no recipe reads what the op writes. Whenever the lock was free, another thread
// may have written to an operand, so that it holds another value now: they are looked for again.
void Ops::bring_operands(const OpTraits& op, Operands& operands, Running& running) {
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
                                       [](const Ref<Value>& value) { return value->there(); });
    running.lock.unlock();
    if (all_there) {
      const std::lock_guard until_it_has_run(state_.restoring);
      running.lock.lock();
      continue;
    }
    try {
      restorer_.bring(running.values, 0);
      running.lock.lock();
      running.pinned = true;
    } catch (...) {
      running.lock.lock();
      if (as_found()) throw;
    }
  }
}

// Whose values are where. False when some must be brought back first.
bool Ops::find_values(const OpTraits& op, Operands& operands, Running& running) {
  bool all = true;
  if (running.pinned) unpin(state_, running.values);
  running.pinned = false;
  running.values.clear();
  for (Operand& operand : operands) {
    if (operand.storage == nullptr || operand.shape_only) continue;
    operand.value = value_in(operand.storage);
    if (operand.value == nullptr) operand.value = graph_.meet(*operand.tensor, &op, false);
    if (operand.value == nullptr) continue;
    Value& value = *operand.value;
    if (running.uses(value)) continue;
    all = all && value.there();
    if (!value.small() && value.storage != nullptr && !value.known_outside) watch(*value.storage);
    running.values.emplace_back(&value);
  }
  return all;
}

}  // namespace stowage::runtime::evict
