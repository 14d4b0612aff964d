#include "runtime/replay/data_guards.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "runtime/replay/arguments.h"
#include "runtime/replay/results.h"

namespace stowage::runtime {

namespace {

// Ops after one whose result has another shape would reach beyond its memory: they take it with the shape on the tape.
void require_recorded_shapes(const Tape& tape, const TapeOp& op, const torch::jit::Stack& results) {
  bool same = true;
  const bool all = each_result(op, results, [&](SlotId id, const at::Tensor& result) {
    same &= !id.valid() || !result.defined() || result.sizes() == at::IntArrayRef(tape.slots[id.index()].meta.sizes);
  });
  if (!all || !same) throw std::runtime_error("a result of another shape than was recorded");
}

}  // namespace

void WorkedOut::lead_to(const DataGuard& guard) {
  for (const std::int32_t i : guard.needs) {
    const TapeOp& op = tape_.ops[static_cast<std::size_t>(i)];
    if (op.role != TapeOp::Role::kKernel) continue;
    const auto [known, first] = done_.emplace(i, false);
    if (!first && !known->second) throw std::runtime_error("an op that leads there has raised before");
    if (!first) continue;
    run_.call(op, stack_);
    require_recorded_shapes(tape_, op, stack_);
    known->second = true;
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
  if (guard.implied) return true;
  if (guard.tensor.valid()) return content(guard) == guard.content;
  return same_value(number(guard), tape_.ops[static_cast<std::size_t>(guard.op)].values[0]);
}

namespace {

std::string what(const Tape& tape, const DataGuard& guard) {
  if (guard.tensor.valid()) return guard.where + ": a tensor that is read on the host";
  const TapeOp& asks = tape.ops[static_cast<std::size_t>(guard.op)];
  return (asks.line >= 0 ? tape.lines[static_cast<std::size_t>(asks.line)] + ": " : std::string()) +
         "a decision on the arguments' data";
}

// Has Python given other numbers, or constants, to what leads there, in some call?
bool varies(const Tape& tape, const DataGuard& guard) {
  const auto varies = [&](std::int32_t i) { return tape.ops[static_cast<std::size_t>(i)].varies; };
  return std::ranges::any_of(guard.needs, varies) || (guard.op >= 0 && varies(guard.op));
}

// A number that Python is given; with another one it may go on alike. A shape, or what an op reads by itself, is baked
// in.
bool only_tells(const Tape& tape, const DataGuard& guard) {
  return guard.op >= 0 && !tape.ops[static_cast<std::size_t>(guard.op)].asks_shape;
}

}  // namespace

Decided decided(const Tape& tape, const std::vector<at::Tensor>& inputs, bool other_numbers) {
  Decided found;
  if (tape.data_guards.empty()) return found;
  WorkedOut now(tape, inputs);
  for (const DataGuard& guard : tape.data_guards) {
    if (!guard.of_arguments) continue;
    try {
      if (now.holds(guard)) continue;
    } catch (const std::exception&) {  // a kernel that Python may not come to, with its numbers of this call
    }
    if (found.other.empty()) found.other = what(tape, guard);
    found.serves = found.serves && (only_tells(tape, guard) || other_numbers || varies(tape, guard));
  }
  return found;
}

}  // namespace stowage::runtime
