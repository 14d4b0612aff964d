// Numbers that the step itself makes and its Python asks for: loss.item(), `if loss.isnan():`, a scaler's found_inf.
//
//   Python    forward over shells … item()?          … over shells …  item()?        … end
//   kernels                         ██████ ► 2.31                     ████ ► 0.7          ██████████
//
// The ops are run as far as the number needs; then Python goes on over shells, and what is left runs at the next
// question or at the end. Nothing of that is final: residents that were written have been saved, and the generator is
// Python's own again, so that the call can be taken back where Python leaves the tape, or gives another number to an op
// that has run. A plan runs such an op only after what Python has come to where it could not be taken back cheaply
// (lower.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/record/tape.h"
#include "runtime/replay/plain_run.h"
#include "runtime/replay/python_generators.h"
#include "runtime/replay/saved_blocks.h"
#include "runtime/torch/generator.h"

namespace stowage::runtime {

class Executor;

class NumberSource {
 public:
  virtual ~NumberSource() = default;
  // What the op, one of Tape::reads, hands to Python. A kernel's exception passes through; nothing has run then.
  virtual torch::jit::Stack tell(TapeOpId read) = 0;
  // Has the op run already?
  [[nodiscard]] virtual bool has_run(TapeOpId op) const = 0;
  // Is this external block where it was before the step, with what it held then?
  [[nodiscard]] virtual bool as_before(BlockId external) const = 0;
  // Nothing has run: residents and generator are as before the step.
  virtual void take_back() = 0;
  // Something has run that take_back() would take back.
  [[nodiscard]] virtual bool under_way() const = 0;
  // Python has come to the end of the tape.
  virtual void end() {}
};

// From the plan, whose run goes on from there (Executor::run).
class PlannedNumbers final : public NumberSource {
 public:
  PlannedNumbers(Executor& executor, std::vector<at::Tensor> inputs)
      : executor_(executor), inputs_(std::move(inputs)) {}
  torch::jit::Stack tell(TapeOpId read) override;
  [[nodiscard]] bool has_run(TapeOpId op) const override;
  [[nodiscard]] bool as_before(BlockId external) const override;
  void take_back() override;
  [[nodiscard]] bool under_way() const override;

 private:
  Executor& executor_;
  std::vector<at::Tensor> inputs_;
};

enum class Room { kEnough, kMade, kShort };  // kMade: tensors had to make room; kShort: not even that was enough

// Calls run() where memory is limited. Where it may fail, it answers kShort; else it throws.
using WithinLimit = std::function<Room(const std::function<void()>& run, bool may_fail)>;

// From the ops in program order, while the plan is not trusted yet. The end takes it back.
//
// Under a limit, what is made for one number stays for the next where there was room enough, and goes where memory runs
// short because of it: then the ops run again, from the first.
class PlainNumbers final : public NumberSource {
 public:
  // `within`: empty where there is no limit.
  PlainNumbers(const Tape& tape, std::vector<at::Tensor> inputs, WithinLimit within)
      : tape_(tape),
        inputs_(std::move(inputs)),
        within_(std::move(within)),
        keeps_(!tape.foreign && !(within_ && PlainRun::any_part(tape, inputs_))) {}
  ~PlainNumbers() override { take_back(); }
  torch::jit::Stack tell(TapeOpId read) override;
  [[nodiscard]] bool has_run(TapeOpId op) const override { return static_cast<std::int32_t>(op.index()) < next_; }
  [[nodiscard]] bool as_before(BlockId external) const override { return !saved_.has(external); }
  void take_back() override;
  [[nodiscard]] bool under_way() const override { return run_.has_value(); }
  void end() override { take_back(); }

 private:
  void run_to(std::int32_t to, torch::jit::Stack& stack);
  void set(const GeneratorState& state) const { set_generators(tape_, state, foreign_draws_); }

  const Tape& tape_;
  std::vector<at::Tensor> inputs_;
  WithinLimit within_;
  bool keeps_;  // there has been room, and no kernel's Python remembers that it ran
  std::optional<PlainRun> run_;
  std::vector<std::vector<BlockId>> ends_;  // by op: blocks that no later one uses
  std::int32_t next_ = 0;
  std::optional<GeneratorState> before_;  // the step
  std::optional<GeneratorState> after_;   // the ops that have run
  bool foreign_draws_ = false;
  SavedBlocks saved_{Kept::kInEachStep};
};

// What the kernels' Python reaches: noted(run) calls run(), and back() puts back what that has changed since the first.
struct PythonOfKernels {
  std::function<void(const std::function<void()>&)> noted;
  std::function<void()> back;
};

// Another source's, of a tape whose kernels may be in Python.
class NotedNumbers final : public NumberSource {
 public:
  NotedNumbers(std::unique_ptr<NumberSource> of, PythonOfKernels python)
      : of_(std::move(of)), python_(std::move(python)) {}
  torch::jit::Stack tell(TapeOpId read) override;
  [[nodiscard]] bool has_run(TapeOpId op) const override { return of_->has_run(op); }
  [[nodiscard]] bool as_before(BlockId external) const override { return of_->as_before(external); }
  void take_back() override;
  [[nodiscard]] bool under_way() const override { return of_->under_way(); }
  void end() override;

 private:
  std::unique_ptr<NumberSource> of_;
  PythonOfKernels python_;
};

}  // namespace stowage::runtime
