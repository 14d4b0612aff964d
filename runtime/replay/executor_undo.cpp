// A step is a transaction: it has happened, or it has not.
//
//   plan      embed   bn   …   nll_loss   …   mm   adam(w2)   mm   adam(w1)
//   writes            ██                           ████            ████
//   saved             ▒▒                                                        a copy, made just before the first write
//   raises    back ◄──────────────────┘       └──► run once more; the step comes to its end, and then the error is raised
//
// What a kernel raises follows from data (an index, a class, a matrix, an operator that PyTorch does not know), or from
// the machine (no memory). Updates wait for all ops of the first kind (lower.h), so that few residents are written
// before them: running statistics, what such an op itself needs. Those are copied, and an error puts them back, and the
// generator. That is all that the ordinary step pays. From the first write that is not copied on there is no way back,
// and no op left whose data can make it raise: one that raises nevertheless runs once more (PyTorch's kernels ask for
// memory, and check, before they write). Where it raises again, the step is half done, and the error says so. Small
// writes are copied to the end: such a step can always go back.
//
// Throws at every op of 8 models, all of this file's roads taken: tests/python/test_torn_state.py.
#include <stdexcept>

#include "runtime/memory/what.h"
#include "runtime/replay/executor.h"
#include "runtime/torch/op_facts.h"
#include "stowage/error.h"

namespace stowage::runtime {

void Executor::write_undo() {
  FirstWrites writes(*tape_);
  for (Instruction& instruction : instructions_) {
    if (instruction.op.valid()) {
      instruction.first_writes = writes.next(tape_->op(instruction.op), instruction.again);
    } else {
      writes.skip();
    }
  }
  saves_until_ = writes.save_until();
}

void Executor::begin_undo() {
  saved_.clear();
  can_take_back_ = true;
  half_done_ = false;
  unsaved_writes_ = 0;
  late_error_ = nullptr;
  generator_before_.reset();
  if (!tape_->moved.empty()) generator_before_ = GeneratorState::current(tape_->generators);
}

void Executor::before_writes(std::size_t index) {
  const Instruction& instruction = instructions_[index];
  if (instruction.first_writes.empty() || rehearsal_ != nullptr) return;
  if (can_take_back_ && (index < saves_until_ || parts_ || paranoid_)) {
    for (const BlockId block : instruction.first_writes) saved_.add(block, storages_[block.index()]);
    return;
  }
  can_take_back_ = false;
  ++unsaved_writes_;
  saved_.clear();
}

void Executor::take_back_writes() {
  abandon_copies();  // what is on its way home must not come after what is put back there
  saved_.restore(
      [&](BlockId block) -> const c10::Storage& { return away(block) ? resident(block) : storages_[block.index()]; });
  if (generator_before_) generator_before_->restore(tape_->moved);
}

void Executor::call_surely(const Instruction& instruction, torch::jit::Stack& stack) {
  std::optional<GeneratorState> drawn;
  rows_written_ = false;
  if (!can_take_back_ && tape_->op(instruction.op).draws()) drawn = GeneratorState::current(tape_->generators);
  try {
    return call_kernel(instruction, stack);
  } catch (...) {
    if (can_take_back_ || rehearsal_ != nullptr || rows_written_) throw;
    if (!late_error_) late_error_ = std::current_exception();
  }
  if (drawn) drawn->restore(tape_->op(instruction.op).drawn_from);
  stack.clear();
  push_arguments(instruction, stack);
  call_kernel(instruction, stack);
}

void Executor::give_up(const std::exception_ptr& error) {
  if (rehearsal_ != nullptr) std::rethrow_exception(error);
  if (can_take_back_) {
    take_back_writes();
    std::rethrow_exception(error);
  }
  half_done_ = true;
  std::string what = "a kernel has failed twice";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    what = what_of(e);
  } catch (...) {  // says nothing
  }
  throw Error(what + "; the step is half done (" + std::to_string(unsaved_writes_) +
              " updates were made): go back to a checkpoint");
}

void Executor::inject(std::int64_t ops, std::int64_t times) {
  fails_in_ = ops;
  fails_ = times;
}

void Executor::fail_as_injected() {
  if (fails_in_ > 0) {
    --fails_in_;
    return;
  }
  if (--fails_ <= 0) fails_in_ = -1;
  throw std::runtime_error("injected");
}

}  // namespace stowage::runtime
