// Match mode: the user's own optimizer.step() runs again, but its kernels do not.
//
//   tape      … add_(step, 1)   item(step)   lerp_(m, g, 0.1)   addcdiv_(p, m, d, -lr/c1) …
//   Python        executed        executed      compared           compared: its new scalar goes onto the tape
//
// Python scalars (learning rate, bias correction) are baked into a recorded op's arguments, and change every step. So the optimizer
// runs its Python on the real parameters, with gradients that have shapes but no memory; each op must be the next one of the tape,
// on the same tensors; its numbers replace the recorded ones. Only the ops that decide numbers (TapeOp::Role::kHost: the step
// counters) really run. Any difference in structure ends the match: the caller records anew.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/hook.h"
#include "runtime/tape.h"

namespace stowage::runtime {

class Matcher final : public Interceptor {
 public:
  explicit Matcher(std::shared_ptr<Tape> tape);

  // Registers a tensor that Python will show as .grad: it becomes a shell of the slot.
  void adopt_shell(const at::Tensor& tensor, SlotId slot);

  // Matches the ops of one section while alive on this thread.
  void begin(int section);
  // Returns "" when all of the section's ops came, else what differed.
  std::string end();

  // Residents that host ops write: not touched by the executor, but part of the step's state.
  [[nodiscard]] std::vector<c10::Storage> host_written() const;

  // Puts back what the host ops of the sections since remember() have written.
  void remember();
  void roll_back();

  void on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;

 private:
  struct SavedBytes {
    c10::Storage storage;
    std::string bytes;
  };

  [[noreturn]] void differs(const std::string& how);
  TapeOp* next(const c10::OperatorHandle& op);
  void match(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void match_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void compare_arguments(TapeOp& op, const torch::jit::Stack& stack);
  bool same_tensors(const TensorRef& ref, const c10::IValue& value, bool real) const;
  bool same_tensor(SlotId slot, const at::Tensor& tensor, bool real) const;
  void run_for_real(TapeOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void answer_with_shells(const TapeOp& op, torch::jit::Stack* stack);
  const at::Tensor& shell(SlotId slot, const torch::jit::Stack& arguments, const TapeOp& op);

  std::shared_ptr<Tape> tape_;
  ska::flat_hash_map<const c10::TensorImpl*, SlotId> known_;  // residents and shells
  std::vector<at::Tensor> shells_;                              // by slot
  ska::flat_hash_map<const c10::TensorImpl*, SlotId> passing_;  // made for real in this section
  std::vector<at::Tensor> passing_tensors_;
  std::string mismatch_;
  std::vector<BlockId> host_written_;
  std::vector<SavedBytes> saved_;
  std::unique_ptr<Intercept> intercept_;
  std::size_t cursor_ = 0;
  std::size_t end_ = 0;
};

}  // namespace stowage::runtime
