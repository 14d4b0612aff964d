// Recording: watches one eager step through the hook and writes the Tape.
//
// The step runs exactly as it would without a recorder. What cannot be replayed does not stop it: the first reason is
// kept (Tape::refusal) and the rest of the step passes unrecorded.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/record/host_fills.h"
#include "runtime/record/kept_writes.h"
#include "runtime/record/names.h"
#include "runtime/record/recorded_draws.h"
#include "runtime/record/tape.h"
#include "runtime/torch/hook.h"

namespace stowage::runtime {

// Steps are planned there from now on: allocations pass the front, the generator is watched. Throws Error where that
// cannot be.
void take_up(c10::Device device);

struct RecordOptions {
  bool fake = false;                    // FakeTensors: nothing is computed, allocations inside ops are not seen
  bool distributed = false;             // ops on tensor subclasses are looked into
  std::function<std::string()> source;  // "file:line" of the user's code that is running now; may be empty
  // Does the operator of that name declare what its results look like, whatever tensors hold? Empty: none does
  std::function<bool(const std::string&)> declares_form;
  // Called before an op that may raise because of what tensors hold; an operator of others may raise anything. Gives what
  // the op is to have as TapeOp::around
  std::function<std::int32_t(bool anything)> may_raise;
};

class Recorder final : public Interceptor {
 public:
  explicit Recorder(RecordOptions options);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Before the step: the tensors that it will find. Arguments, which are bound anew in every replay: see
  // Names::declare_input.
  SlotId declare(const at::Tensor& tensor, BufferKind kind, std::string name);
  SlotId declare_input(const at::Tensor& tensor, BufferKind kind, std::string name, int input, std::int64_t start_bytes,
                       std::int64_t end_bytes);
  // A parameter whose .grad is that input.
  void declare_gradient(const at::Tensor& parameter, int input);

  void start();
  // Around a call of optimizer.step(); `gradients` are the .grad tensors that it will see (undefined ones allowed).
  void begin_section(const std::vector<at::Tensor>& gradients);
  void end_section();
  void refuse(const std::string& reason);  // the first one counts
  [[nodiscard]] const std::string& refusal() const { return tape_->refusal; }
  [[nodiscard]] std::size_t ops() const { return tape_->ops.size(); }  // recorded so far
  void stop();
  // A random generator that the step can reach, before it may be drawn from or set.
  void know(const at::Generator& generator, const std::vector<std::shared_ptr<Tape>>& earlier) {
    draws_.know(generator, earlier);
  }
  // While the step runs: `what` reads a tensor on the host, beside the dispatcher. That is fine as long as it follows
  // from arguments.
  void reads_on_host(const at::Tensor& tensor, const std::string& what);

  // Position of the latest op, or -1; and that nobody holds the array any more for which that op has told a tensor.
  [[nodiscard]] std::int32_t latest_op() const { return static_cast<std::int32_t>(tape_->ops.size()) - 1; }
  void array_gone(std::int32_t teller);

  // After stop(), with all of the step's local tensors gone: source lines of tensors that outlive the step, except
  // `allowed`.
  [[nodiscard]] std::vector<std::string> survivors(const std::vector<at::Tensor>& allowed) const;

  // Within a function of PyTorch's that fills tensors on the host, by what it has read there (reads_on_host).
  void fills(bool inside) { host_fills_.within(inside); }

  // The slot of a tensor, made known if need be; invalid when unknown to the step and `make` is false.
  SlotId slot_of(const at::Tensor& tensor);
  [[nodiscard]] bool made_in_step(const at::Tensor& tensor) const { return names_.made_in_step(tensor); }
  // Positions of the inputs that an op has read, written, or made a view of.
  [[nodiscard]] std::set<int> touched_inputs() const;

  // Positions of declared gradients that are another one now, or none.
  [[nodiscard]] std::vector<int> let_go() const;

  // Does the tensor lie in memory that was there before the step, and that no call brings with it?
  [[nodiscard]] bool lasts(const at::Tensor& tensor) const;
  // Has an op read or written that memory, or made a view of it?
  [[nodiscard]] bool touches(const at::Tensor& tensor) const;
  // Has a kernel written it?
  [[nodiscard]] bool writes(const at::Tensor& tensor) const;

  // Hands over the finished tape. `returned`: tensors to hand out after every replay. `keep`: the survivors as well.
  // `earlier`: recordings of the same step. `dropped`: positions of inputs that the step lets
  // go of unread: where no part of a planned call runs before that, they take no room in it. `returned_numbers`:
  // see finish_tape(). `until_next`: of `returned`, what is gone before any part of the next planned call runs.
  std::shared_ptr<Tape> finish(const std::vector<at::Tensor>& returned, bool keep,
                               const std::vector<at::Tensor>& replaced, const std::set<int>& dropped,
                               const std::vector<std::shared_ptr<Tape>>& earlier,
                               const std::set<TapeOpId>& returned_numbers, const std::set<int>& until_next);

  // After stop(): puts back what the step has written so far to tensors that it has found, and the generator. False
  // where that was not kept: the tape is refused, the machine is short of memory, an eager budget has copies of its
  // own.
  bool take_back();
  // The latest op has raised.
  [[nodiscard]] bool kernel_raised() const { return kernel_raised_; }

  // Whatever happened, and on the thread that made this: another one may come to destroy it.
  void close();

  void on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;
  [[nodiscard]] Level level() const override {
    return options_.fake || options_.distributed ? Level::kAbove : Level::kBelow;
  }
  [[nodiscard]] bool looks_inside_subclasses() const override { return options_.distributed; }
  void cannot_replay(const std::string& why) override { refuse(why); }

 private:
  [[nodiscard]] std::vector<BlockId> surviving_blocks(const std::vector<at::Tensor>& allowed) const;
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // Records what decides the shape of the op's result. False where nothing was asked.
  [[nodiscard]] TapeOp::Form form_of(const c10::OperatorHandle& op) const;
  bool ask_for_shape(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, const torch::jit::Stack& stack);
  void record_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void take_arguments(TapeOp& op, torch::jit::Stack* stack);
  [[nodiscard]] bool gives_sparse() const;
  bool take_sparse(const c10::OperatorHandle& op, const c10::IValue& value);
  void look_for_absolute_offset(const TapeOp& op);
  void take_results(TapeOp& op, torch::jit::Stack* stack, const std::vector<AllocationEvent>& events);
  void settle_role(TapeOp& op, const std::vector<AllocationEvent>& events);
  TensorRef reference(const c10::IValue& value, bool is_result, std::vector<BlockId>& created);
  void settle_device(const at::Tensor& tensor);
  void note_found();
  [[nodiscard]] std::vector<at::Tensor> found_anew(const std::vector<std::shared_ptr<Tape>>& earlier);
  int current_line();
  void note_let_go();
  void let_go_of_untouched();
  void settle_dropped(const std::vector<at::Tensor>& returned, const std::set<int>& dropped);

  RecordOptions options_;
  std::shared_ptr<Tape> tape_;
  Names names_;
  RecordedDraws draws_;
  KeptWrites kept_writes_;
  HostFills host_fills_;
  struct Gradient {
    at::Tensor parameter;
    const c10::TensorImpl* gradient;
    int input;
  };
  std::vector<Gradient> gradients_;
  // By input: those that the step has let go, and before which op that was so when Python was told something
  struct LetGo {
    at::Tensor parameter;
    std::size_t before;
  };
  std::map<int, LetGo> let_go_;
  std::unique_ptr<Intercept> intercept_;
  std::vector<const c10::TensorImpl*> arguments_;  // of the latest op
  bool kernel_raised_ = false;
  std::int64_t started_ns_ = 0;
  std::int64_t stream_ = 0;    // that was current then
  std::int32_t settings_ = 0;  // of the latest op
};

}  // namespace stowage::runtime
