// Tensors that are filled on the host, past the dispatcher, while a step is recorded.
//
//   by Python            torch.tensor([1, 2]), from_numpy(array)   lifted into the step by an op: a constant
//   by PyTorch's code    empty(), then written within a function   a constant that is filled again where Python runs again
//                        that reads on the host
//
// Where Python also has the memory as an array, it must stay as it was lifted, and no op may write to it: a plan knows no
// order between what Python does to it and what kernels do.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/record/finish.h"
#include "runtime/record/kept_writes.h"
#include "runtime/record/names.h"
#include "runtime/record/tape.h"

namespace stowage::runtime {

class HostFills {
 public:
  HostFills(Tape& tape, Names& names, bool fake) : tape_(tape), names_(names), fake_(fake) {}

  // Within a function of PyTorch's that fills tensors on the host, by what it has read there.
  void within(bool inside) { within_ = inside; }

  // The argument of an op that brings it into the step.
  void lift(const at::Tensor& tensor);
  // Python has put it in the place of another one.
  void replaced(const at::Tensor& tensor) { by_python_.push_back(HostFilled::copy_of(tensor, TapeOpId())); }
  // An argument of an op. Returns why the step cannot be replayed, or "".
  std::string look_at(const TapeOp& op, std::size_t argument, const c10::IValue& value);
  // The op's results are on the stack, and on the tape but for the op.
  void take_result(const TapeOp& op, const torch::jit::Stack& stack);

  [[nodiscard]] const std::vector<HostFilled>& by_python() const { return by_python_; }
  // Of those: written by ops, so that they are the step's own, and held by others than `kept` and `allowed`. With the op
  // that brought each into the step.
  [[nodiscard]] std::map<BlockId, TapeOpId> written_and_held(const KeptWrites& kept,
                                                             const std::vector<at::Tensor>& allowed) const;
  [[nodiscard]] const std::vector<FilledInside>& inside() const { return inside_; }

 private:
  // Of a tensor over memory that Python has by itself: is it as it was lifted, and stays so?
  std::string look_at_shared(const TapeOp& op, std::size_t argument, const c10::IValue& value);
  std::string look_at_shared(const TapeOp& op, std::size_t argument, const at::Tensor& tensor);
  void look_at_filled(const TapeOp& op, std::size_t argument, const c10::IValue& value);

  Tape& tape_;
  Names& names_;
  bool fake_;
  std::vector<HostFilled> by_python_;
  std::vector<FilledInside> inside_;
  bool within_ = false;
  bool shares_memory_ = false;  // some of those lie over memory that Python has by itself
};

}  // namespace stowage::runtime
