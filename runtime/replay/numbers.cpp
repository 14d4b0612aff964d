#include "runtime/replay/numbers.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/replay/executor.h"
#include "runtime/replay/foreign_draws.h"

namespace stowage::runtime {

torch::jit::Stack PlannedNumbers::tell(TapeOpId read) { return executor_.tell(read, inputs_); }
bool PlannedNumbers::has_run(TapeOpId op) const { return executor_.has_run(op); }
bool PlannedNumbers::as_before(BlockId external) const { return executor_.as_before(external); }
void PlannedNumbers::take_back() { executor_.take_back(); }
bool PlannedNumbers::under_way() const { return executor_.tells(); }

torch::jit::Stack PlainNumbers::tell(TapeOpId read) {
  torch::jit::Stack stack;
  const auto run = [&] { run_to(static_cast<std::int32_t>(read.index()) + 1, stack); };
  try {
    if (!within_) {
      run();
      return stack;
    }
    const Room room = within_(run, /*may_fail=*/run_.has_value());
    keeps_ = keeps_ && room == Room::kEnough;
    if (room == Room::kShort) {
      take_back();
      stack.clear();
      within_(run, /*may_fail=*/false);
    }
  } catch (...) {
    take_back();
    throw;
  }
  if (!keeps_) take_back();
  return stack;
}

void PlainNumbers::run_to(std::int32_t to, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::AutoGradMode grad_mode_restorer(c10::GradMode::is_enabled());
  const PythonGenerators back_at_end(tape_, foreign_draws_);
  if (!run_) {
    run_.emplace(tape_, inputs_);
    ends_ = run_->last_uses(static_cast<std::int32_t>(tape_.ops.size()));
    before_ = GeneratorState::current(tape_.generators);
  } else {
    set(*after_);
  }
  for (; next_ < to; ++next_) {
    const TapeOp& op = tape_.ops[static_cast<std::size_t>(next_)];
    if (op.role == TapeOp::Role::kKernel)
      saved_.add_written(tape_, op, [&](BlockId block) -> c10::Storage& { return run_->storage(block); });
    {
      const ForeignDraws draws(tape_, op, true, foreign_draws_);
      run_->run_op(next_, stack);
    }
    for (const BlockId block : ends_[static_cast<std::size_t>(next_)]) run_->storage(block) = c10::Storage();
  }
  after_ = GeneratorState::current(tape_.generators);
}

void PlainNumbers::take_back() {
  if (!run_) return;
  saved_.restore([&](BlockId block) -> c10::Storage& { return run_->storage(block); });
  before_->restore(tape_.moved);
  run_.reset();
  foreign_draws_ = false;
  next_ = 0;
}

torch::jit::Stack NotedNumbers::tell(TapeOpId read) {
  torch::jit::Stack told;
  std::exception_ptr error;  // which does not pass through Python
  python_.noted([&] {
    try {
      told = of_->tell(read);
    } catch (...) {
      error = std::current_exception();
    }
  });
  if (!under_way()) python_.back();
  if (error) std::rethrow_exception(error);
  return told;
}

void NotedNumbers::take_back() {
  const bool was = under_way();
  of_->take_back();
  if (was) python_.back();
}

void NotedNumbers::end() {
  const bool was = under_way();
  of_->end();
  if (was && !under_way()) python_.back();
}

}  // namespace stowage::runtime
