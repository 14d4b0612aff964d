#include "runtime/replay/data_guards.h"

namespace stowage::runtime {

void WorkedOut::lead_to(const DataGuard& guard) {
  for (const std::int32_t i : guard.needs) {
    const TapeOp& op = tape_.ops[static_cast<std::size_t>(i)];
    if (op.role == TapeOp::Role::kKernel && done_.insert(i).second) run_.call(op, stack_);
  }
}

c10::IValue WorkedOut::number(const DataGuard& guard) {
  lead_to(guard);
  run_.call(tape_.ops[static_cast<std::size_t>(guard.op)], stack_);
  return stack_[0];
}

std::string WorkedOut::content(const DataGuard& guard) {
  lead_to(guard);
  const at::Tensor elements = run_.tensor(guard.tensor).contiguous().resolve_conj().resolve_neg().cpu();
  return {static_cast<const char*>(elements.const_data_ptr()), elements.nbytes()};
}

bool WorkedOut::holds(const DataGuard& guard) {
  if (guard.tensor.valid()) return content(guard) == guard.content;
  return number(guard) == tape_.ops[static_cast<std::size_t>(guard.op)].values[0];
}

std::string changed_decision(const Tape& tape, const std::vector<at::Tensor>& inputs) {
  if (tape.data_guards.empty()) return {};
  WorkedOut now(tape, inputs);
  for (const DataGuard& guard : tape.data_guards) {
    bool holds = !guard.of_arguments;
    try {
      holds = holds || now.holds(guard);
    } catch (const std::exception&) {  // a kernel that Python may not come to, with its numbers of this call
    }
    if (holds) continue;
    if (guard.tensor.valid()) return guard.where + ": a tensor that is read on the host";
    const TapeOp& asks = tape.ops[static_cast<std::size_t>(guard.op)];
    return (asks.line >= 0 ? tape.lines[static_cast<std::size_t>(asks.line)] + ": " : std::string()) +
           "a decision on the arguments' data";
  }
  return {};
}

}  // namespace stowage::runtime
