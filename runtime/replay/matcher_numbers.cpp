// Matching a step: numbers that this call gives in the place of recorded ones, and numbers that its Python asks for.
//
//   given      an argument of another value, a constant of another content: onto the tape, so that a run has it
//   asked for  made by kernels: they run as far as needed (numbers.h)
//              known before the step: as recorded, or worked out anew where something that leads there differs
#include <algorithm>

#include "runtime/replay/arguments.h"
#include "runtime/replay/data_guards.h"
#include "runtime/replay/matcher.h"
#include "runtime/replay/results.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

using Role = TapeOp::Role;

bool Matcher::take_numbers(TapeOp& op, const torch::jit::Stack& stack, bool& changed) {
  bool fine = true;
  const std::size_t count = arguments_on_stack(op);
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[stack.size() - count + i];
    if (op.tensors[i].kind == TensorRef::Kind::kNone) {
      if (!is_number_of_the_same_kind(op, i, value)) continue;
      if (is_sparse(value)) {
        take_sparse(op, i, value.toTensor());
        continue;
      }
      changed |= !same_number(op.arguments[i], value);
      op.arguments[i] = value;
      continue;
    }
    for_each_tensor(op.tensors[i], value, [&](SlotId slot, const at::Tensor& tensor) {
      if (!slot.valid() || !tensor.defined()) return;
      fine = fine && take_place(slot, tensor);
      changed |= places_[slot.index()] == PlaceNow::kOther;
      const BlockId id = tape_->slots[slot.index()].block;
      const Block& block = tape_->blocks[id.index()];
      const bool given = block.by_value || (block.of_python && !place_of(tensor).block.valid());
      if (!given || !(block.by_value ? take_part(tensor, id) : take_content(tensor, block, op))) return;
      changed = true;
      if (a_user_has_run(id)) take_back_numbers();
    });
  }
  refreshed_ |= changed && op.section < 0 && tape_ == own_;
  return fine;
}

// Whatever it holds now. What has run with the one before goes back; that it is another object, as one that was just
// transposed is in each call, says nothing of the step.
void Matcher::take_sparse(TapeOp& op, std::size_t i, const at::Tensor& given) {
  const bool other = !op.arguments[i].toTensor().is_same(given);
  op.arguments[i] = given;
  if (other && mode_ == Mode::kStep && numbers().has_run(TapeOpId(cursor_ - 1))) take_back_numbers();
}

// Made anew by Python: the recorded tensor, which the executor has bound, takes its content. Host ops take it as it is.
bool Matcher::take_content(const at::Tensor& from, const Block& constant, const TapeOp& op) {
  const BlockId block = tape_->slots[constant.owner.index()].block;
  if (op.role == Role::kHost) return false;
  if (mode_ == Mode::kSection && lifts_host_data(op.handle) && !constant.refreshed) return false;
  taken_[block.index()] = true;
  const bool changed = !same_content(from, constant.tensor);
  if (changed) note_stale(*tape_, cursor_ - 1);
  if (changed && mode_ == Mode::kStep) other_content_[block.index()] = changes_ = true;
  copy_bytes(from.storage(), constant.tensor.storage());
  passing_[from.storage().unsafeGetStorageImpl()] = {{block, 0, 0}};
  kept_.push_back(watched(from.storage()));
  return changed;
}

// What it looks at, into the copy that stands for it alone.
bool Matcher::take_part(const at::Tensor& from, BlockId block) {
  const c10::Storage& copy = tape_->blocks[block.index()].tensor.storage();
  const std::int64_t start = span_bytes(from).first;
  if (same_part(from.storage(), start, copy)) return false;
  note_stale(*tape_, cursor_ - 1);
  if (mode_ == Mode::kStep) other_content_[block.index()] = changes_ = true;
  copy_part(from.storage(), start, copy);
  return true;
}

// Of a constant. A plan may run those that come later in the program first.
bool Matcher::a_user_has_run(BlockId constant) {
  if (tape_->reads.empty() || mode_ != Mode::kStep) return false;
  for (std::size_t i = cursor_ - 1; i < end_; ++i) {
    bool uses = false;
    for_each_access(*tape_, tape_->ops[i], [&](BlockId block, Access) { uses |= block == constant; });
    if (uses && numbers().has_run(TapeOpId(i))) return true;
  }
  return false;
}

// Kernels that this runs are none of Python's.
template <class WorkOut>
auto Matcher::aside(WorkOut work_out) {
  struct Telling {
    bool& telling;
    ~Telling() { telling = false; }
  } const at_end{telling_};
  telling_ = true;
  const PastModes past_modes(*tape_);
  try {
    return work_out();
  } catch (...) {
    told_in_vain_ = true;
    throw;
  }
}

// Runs the step up to this op, whose arguments leave the stack. What it tells. Where another rank has taken back what had
// run, its collectives run anew, and meet those of ranks that do the same.
torch::jit::Stack Matcher::tell(TapeOpId op, torch::jit::Stack* stack) {
  if (on_all_ranks_ && !on_all_ranks_(numbers().under_way())) take_back_numbers();
  torch::jit::drop(*stack, arguments_on_stack(tape_->op(op)));
  struct AsPythonHasIt {
    const OfGeneratorParts<bool>& moved;
    GeneratorState python;
    ~AsPythonHasIt() { python.restore(moved); }
  } const at_end{tape_->moved, generators_now()};
  python_generator_[0].restore(tape_->moved);
  if (!numbers().under_way()) decide_ahead();
  return aside([&] { return numbers().tell(op); });
}

// Runs the step up to this op, whose results may look otherwise in each call. False: they do; the op is as if it had not
// come yet, and its arguments are on the stack.
bool Matcher::wait_for_form(TapeOpId id, torch::jit::Stack* stack) {
  const TapeOp& op = tape_->op(id);
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(arguments_on_stack(op)), stack->end());
  torch::jit::Stack made = tell(id, stack);
  stack->insert(stack->end(), arguments.begin(), arguments.end());
  if (!has_recorded_form(*tape_, op, made)) {
    if (op.random_order >= 0) {
      draws_.pop_back();
      python_generator_.pop_back();
      python_generator_.back().restore(op.drawn_from);
    }
    --cursor_;
    return false;
  }
  answer_with_shells(op, stack);
  const std::size_t first = stack->size() - op.results.size();
  for (std::size_t r = 0; r < op.results.size(); ++r)
    if (op.results[r].kind == TensorRef::Kind::kNone) (*stack)[first + r] = made[made.size() - op.results.size() + r];
  return true;
}

// ---- Decisions (data_guards.h)

void Matcher::note_changed(TapeOpId op) {
  tape_->op(op).varies = true;
  note_stale(*tape_, op.index());
  if (mode_ == Mode::kStep) other_numbers_[op.index()] = changes_ = true;
}

// Has this call given other numbers, or constants of another content, to what leads there?
bool Matcher::differs_in(const DataGuard& guard) const {
  bool differs = guard.op >= 0 ? other_numbers_[static_cast<std::size_t>(guard.op)]
                               : places_[guard.tensor.index()] == PlaceNow::kOther;
  for (const std::int32_t i : guard.needs) {
    differs |= other_numbers_[static_cast<std::size_t>(i)];
    for_each_access(*tape_, tape_->ops[static_cast<std::size_t>(i)],
                    [&](BlockId block, Access) { differs |= other_content_[block.index()]; });
  }
  if (guard.op < 0) return differs;
  for (const TensorRef& ref : tape_->ops[static_cast<std::size_t>(guard.op)].tensors) {
    for (const SlotId slot : ref.slots)
      differs |= slot.valid() && other_content_[tape_->slots[slot.index()].block.index()];
  }
  return differs;
}

// A number or a constant of the tape is another one from here on.
void Matcher::note_stale(Tape& tape, std::size_t from) {
  for (DataGuard& guard : tape.data_guards) guard.stale |= guard.op >= 0 && static_cast<std::size_t>(guard.op) >= from;
}

bool Matcher::is_known(const DataGuard& guard) const {
  if (guard.stale && !guard.of_arguments) return false;
  return decided() && !(changes_ && differs_in(guard));
}

// Kernels are about to run, and some write where numbers come from that Python asks for later. Those that all has come
// for are worked out first.
void Matcher::decide_ahead() {
  if (mode_ != Mode::kStep || tape_->data_guards.empty()) return;
  std::optional<WorkedOut> worked_out;
  const bool told_in_vain = told_in_vain_;
  for (const DataGuard& guard : tape_->data_guards) {
    const bool has_come = guard.needs.empty() || static_cast<std::size_t>(guard.needs.back()) < cursor_;
    const bool will_be_asked = guard.op >= 0 && static_cast<std::size_t>(guard.op) >= cursor_;
    if (!guard.overwritten || !has_come || !will_be_asked || is_known(guard) || ahead_.contains(&guard)) continue;
    try {
      aside([&] {
        if (!worked_out) worked_out.emplace(*tape_, inputs_);
        ahead_[&guard] = worked_out->number(guard);
      });
    } catch (const std::exception&) {  // raised again where Python asks, if it does
      told_in_vain_ = told_in_vain;
    }
  }
}

// What leads there is as it was before the step from now on.
void Matcher::take_back_for(const DataGuard& guard) {
  if (!numbers().under_way()) return;
  const auto changed = [&](BlockId block) { return !numbers().as_before(block); };
  if (std::ranges::any_of(guard.origins, changed)) take_back_numbers();
}

// A number that is known before the step: the recorded one, where it has just been seen that arguments and residents still
// lead to it; the one of the call before, where Python's own numbers and constants lead to it, and are as they were then;
// else it is worked out. The tape keeps the recorded one: what Python did because of it is known of that alone.
void Matcher::decide(TapeOpId id, torch::jit::Stack* stack) {
  TapeOp& op = tape_->op(id);
  const auto guard = std::find_if(tape_->data_guards.begin(), tape_->data_guards.end(),
                                  [&](const DataGuard& g) { return TapeOpId(g.op) == id; });
  if (guard == tape_->data_guards.end()) return answer_with_shells(op, stack);
  torch::jit::drop(*stack, arguments_on_stack(op));
  c10::IValue number;
  if (is_known(*guard)) {
    number = guard->of_arguments ? op.values[0] : guard->latest.value_or(op.values[0]);
  } else if (const auto ahead = ahead_.find(&*guard); ahead != ahead_.end() && !other_numbers_[id.index()]) {
    number = ahead->second;
  } else {
    take_back_for(*guard);
    number = aside([&] { return WorkedOut(*tape_, inputs_).number(*guard); });
  }
  if (!same_value(number, op.values[0])) {
    decides_otherwise_ = true;
    decides_anew_ |= !guard->latest.has_value() || !same_value(*guard->latest, number);
  }
  guard->latest = number;
  guard->stale = false;
  stack->push_back(std::move(number));
}

// Of what ops that are no kernels read on the host: is it as recorded, where all that leads there has come with `op`, or
// the op that was recorded after the reading comes next?
bool Matcher::still_holds(TapeOpId op) {
  for (const DataGuard& guard : tape_->data_guards) {
    const bool leads = !guard.needs.empty() && TapeOpId(guard.needs.back()) == op;
    const bool read = guard.at == static_cast<std::int32_t>(op.index()) + 1;
    if (guard.op >= 0 || !(leads || read) || (decided() && !differs_in(guard))) continue;
    take_back_for(guard);
    if (!aside([&] { return WorkedOut(*tape_, inputs_).holds(guard); })) return false;
  }
  return true;
}

}  // namespace stowage::runtime
