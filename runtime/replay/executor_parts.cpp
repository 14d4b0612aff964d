// A planned step that runs in parts, while its Python waits for numbers (numbers.h).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <chrono>

#include "runtime/replay/arguments.h"
#include "runtime/replay/executor.h"

namespace stowage::runtime {

torch::jit::Stack Executor::tell(TapeOpId read, const std::vector<at::Tensor>& inputs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::AutoGradMode grad_mode_restorer(c10::GradMode::is_enabled());
  const auto start = std::chrono::steady_clock::now();
  const PythonGenerators back_at_end(*tape_, foreign_draws_);
  if (parts_) {
    set_generators(parts_->after);
  } else {
    begin(inputs);
    const GeneratorState before = GeneratorState::current(tape_->generators);
    parts_.emplace(Parts{0, {}, before, before});
  }
  torch::jit::Stack told;
  try {
    const ArmScript armed(script_);
    for (bool there = false; !there; ++parts_->next) {
      const Instruction& instruction = instructions_[parts_->next];
      there = instruction.op == read;
      run_step(parts_->next, {}, told, parts_->stats);
    }
  } catch (...) {
    take_back();
    throw;
  }
  parts_->stats.wall_ns +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  parts_->after = GeneratorState::current(tape_->generators);
  return std::move(told_);
}

bool Executor::tells_as_recorded(const std::vector<TapeOpId>& reads, const std::vector<at::Tensor>& inputs) {
  for (const TapeOpId read : reads) {
    if (tells_recorded_numbers(tape_->op(read), tell(read, inputs))) continue;
    take_back();
    return false;
  }
  return true;
}

// What is written in parts is saved (executor_undo.cpp).
bool Executor::as_before(BlockId external) const { return !parts_ || !(saved_.has(external) || away(external)); }

void Executor::take_back() {
  if (!parts_) return;
  take_back_writes();
  parts_->before.restore(tape_->moved);
  parts_.reset();
  const ArmScript armed(script_);
  leave_step();
}

}  // namespace stowage::runtime
