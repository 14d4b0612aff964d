#include "runtime/replay/matcher.h"

#include <ATen/core/List.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "runtime/replay/data_guards.h"
#include "runtime/replay/plain_run.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/shape_questions.h"
#include "runtime/torch/split.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

using Role = TapeOp::Role;

bool is_number_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

bool same_kind_of_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDoubleList() && b.isDoubleList()) return a.toDoubleList().size() == b.toDoubleList().size();
  if (a.isIntList() && b.isIntList()) return a.toIntList().size() == b.toIntList().size();
  if (a.isList() && b.isList()) {
    const c10::ArrayRef<c10::IValue> x = a.toListRef();
    const c10::ArrayRef<c10::IValue> y = b.toListRef();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_kind_of_number);
  }
  return (a.isDouble() && b.isDouble()) || (a.isInt() && b.isInt()) || (a.isComplexDouble() && b.isComplexDouble()) ||
         (a.isBool() && b.isBool());
}

// Both of the same kind, and neither decides a shape: it may change from step to step.
bool is_number_of_the_same_kind(const TapeOp& op, std::size_t i, const c10::IValue& value) {
  const c10::IValue& recorded = op.arguments[i];
  if (static_cast<int>(i) == op.fixed_number) return false;
  if (is_number_tensor(recorded))
    return is_number_tensor(value) && value.toTensor().scalar_type() == recorded.toTensor().scalar_type();
  return same_kind_of_number(recorded, value) && takes_number(op.handle, i);
}

// Of the same kind.
bool same_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList()) {
    const c10::ArrayRef<c10::IValue> x = a.toListRef();
    const c10::ArrayRef<c10::IValue> y = b.toListRef();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_number);
  }
  if (is_number_tensor(a)) {
    const at::Tensor& x = a.toTensor();
    return std::memcmp(x.const_data_ptr(), b.toTensor().const_data_ptr(), x.element_size()) == 0;
  }
  if (!a.isDouble()) return a == b;
  const double x = a.toDouble();
  const double y = b.toDouble();
  return std::memcmp(&x, &y, sizeof(x)) == 0;
}

bool same_content(const at::Tensor& a, const at::Tensor& b) { return same_bytes(a.storage(), b.storage()); }

// visit(slot, tensor) for each tensor that is recorded there and given now; false where they are not of one kind and
// count.
template <class Visit>
bool for_each_tensor(const TensorRef& ref, const c10::IValue& value, const Visit& visit) {
  switch (ref.kind) {
    case TensorRef::Kind::kTensor:
      if (!value.isTensor()) return false;
      visit(ref.slots[0], value.toTensor());
      return true;
    case TensorRef::Kind::kTensorList: {
      if (!value.isTensorList()) return false;
      const std::vector<at::Tensor> list = value.toTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) visit(ref.slots[i], list[i]);
      return true;
    }
    case TensorRef::Kind::kOptionalTensorList: {
      if (!value.isOptionalTensorList()) return false;
      const auto list = value.toOptionalTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) visit(ref.slots[i], list[i].value_or(at::Tensor()));
      return true;
    }
    case TensorRef::Kind::kNone: break;
  }
  return false;
}

// A copy of what Python has lifted stands for lift_fresh(), which has one argument.
std::size_t arguments_on_stack(const TapeOp& op) { return op.lifted_copy ? 1 : op.arguments.size(); }

}  // namespace

Matcher::Matcher(std::shared_ptr<Tape> tape) : tape_(std::move(tape)), own_(tape_) {
  add_externals(*tape_, residents_);
  for (const TapeOp& op : tape_->ops) {
    if (op.role != Role::kHost) continue;
    for_each_access(*tape_, op, [&](BlockId block, Access access) {
      const bool external = tape_->blocks[block.index()].external;
      const bool listed = std::find(host_written_.begin(), host_written_.end(), block) != host_written_.end();
      if (access == Access::kWrite && external && !listed) host_written_.push_back(block);
    });
  }
}

void Matcher::add_externals(const Tape& tape, Storages& storages) const {
  for (std::size_t i = 0; i < tape.blocks.size(); ++i) {
    const Block& block = tape.blocks[i];
    if (!block.external || block.input >= 0 || !block.tensor.defined()) continue;
    const bool unused = block.kind == BufferKind::kConstant && !block.found && !block.of_python && tape.below_autograd;
    if (unused) continue;  // the recorded call could reach it; this one may come by it
    storages[block.tensor.storage().unsafeGetStorageImpl()] = {{BlockId(i), 0, 0}};
  }
}

void Matcher::add_inputs(const Tape& tape, Storages& storages) const {
  for (std::size_t i = 0; i < tape.blocks.size(); ++i) {
    const Block& block = tape.blocks[i];
    if (block.input < 0 || static_cast<std::size_t>(block.input) >= inputs_.size()) continue;
    const at::Tensor& input = inputs_[static_cast<std::size_t>(block.input)];
    if (!input.defined()) continue;
    const std::int64_t start = span_bytes(input).first;
    storages[input.storage().unsafeGetStorageImpl()].push_back({BlockId(i), start, start + block.bytes});
  }
}

void Matcher::adopt_shell(const at::Tensor& tensor, SlotId id) {
  const Slot& slot = tape_->slots[id.index()];
  become_shell(tensor, slot.meta, tape_->blocks[slot.block.index()].bytes);
  residents_[tensor.storage().unsafeGetStorageImpl()] = {{slot.block, 0, 0}};
}

std::vector<c10::Storage> Matcher::host_written(const std::vector<at::Tensor>& inputs) const {
  std::vector<c10::Storage> storages;
  for (const BlockId id : host_written_) {
    const Block& block = own_->blocks[id.index()];
    if (block.input >= 0 && static_cast<std::size_t>(block.input) >= inputs.size()) continue;
    const at::Tensor& tensor = block.input >= 0 ? inputs[static_cast<std::size_t>(block.input)] : block.tensor;
    if (tensor.defined()) storages.push_back(tensor.storage());
  }
  return storages;
}

void Matcher::remember(const std::vector<at::Tensor>& inputs) {
  saved_.clear();
  for (const c10::Storage& storage : host_written(inputs))
    saved_.emplace_back(storage, KeptBytes(storage, Kept::kInEachStep));
}

void Matcher::roll_back() {
  for (const auto& [storage, content] : saved_) content.put_back(storage);
  saved_.clear();
  // What stands for states of a step that has not happened: as they were before it
  unmark_what_python_has([&](std::size_t) -> const GeneratorState& { return python_generator_[0]; });
  told_states_.clear();
  set_aside_.clear();
}

void Matcher::forget_passing() {
  passing_.clear();
  kept_.clear();
  shells_.assign(tape_->blocks.size(), std::nullopt);
  taken_.assign(tape_->blocks.size(), false);
  other_content_.assign(tape_->blocks.size(), false);
  other_numbers_.assign(tape_->ops.size(), false);
  places_.assign(tape_->slots.size(), PlaceNow::kUnseen);
  moves_.assign(tape_->blocks.size(), false);
  changes_ = false;
}

void Matcher::begin(int section) {
  const Section& range = tape_->sections.at(static_cast<std::size_t>(section));
  mode_ = Mode::kSection;
  mismatch_.clear();
  cursor_ = static_cast<std::size_t>(range.from);
  end_ = static_cast<std::size_t>(range.to);
  forget_passing();
  add_inputs(*tape_, passing_);
  know_generators();
  intercept_ = std::make_unique<Intercept>(*this);
}

std::string Matcher::end() {
  intercept_.reset();
  forget_passing();
  if (mismatch_.empty() && cursor_ != end_) mismatch_ = "the optimizer did fewer operations than were recorded";
  return mismatch_;
}

// ---- One op

void Matcher::on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (mode_ == Mode::kLeft && draws_random_numbers(op)) unmark_generator();
  if (mode_ == Mode::kLeft || telling_) {
    run_leaf(op, keys, stack);
  } else if (told_in_vain_) {
    throw std::runtime_error(kCaughtText);
  } else if (is_elementwise_list_op(op)) {
    match_per_element(op, keys, stack);
  } else if (mode_ == Mode::kStep && looks_at_told_state(*stack, op.schema().arguments().size())) {
    leave("the step looks into a state of a random generator");
    run_leaf(op, keys, stack);
  } else {
    ask_for_shape(op, keys, *stack);
    if (mode_ == Mode::kLeft) return run_leaf(op, keys, stack);
    match(op, keys, stack);
  }
}

// As the recorder has asked (shape_questions.h). Another shape is another step.
void Matcher::ask_for_shape(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack) {
  if (mode_ != Mode::kStep || !tape_->below_autograd) return;
  for (ShapeQuestion& question : shape_questions(op, stack)) {
    match(question.count, keys, &question.arguments);
    if (mode_ == Mode::kLeft) return;
    match(scalar_reader(), keys, &question.arguments);
    if (mode_ == Mode::kLeft) return;
    const c10::IValue& count = question.arguments.back();
    const auto as_recorded = [&] { return count == tape_->ops[cursor_ - 1].values[0]; };
    if (!as_recorded() && !change_where(as_recorded))
      return leave(name_with_line(*tape_, tape_->ops[cursor_ - 1]) +
                   " gives a result of another shape than was recorded");
  }
}

void Matcher::match_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<torch::jit::Stack> parts = split_list_op(op, *stack);
  if (parts.empty()) return match(op, keys, stack);
  for (torch::jit::Stack& part : parts) {
    if (mode_ == Mode::kLeft) {
      run_leaf(op, keys, &part);
    } else {
      match(op, keys, &part);
    }
  }
  join_results(op, parts, stack);
}

void Matcher::match(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  take_generators(*stack, handle.schema().arguments().size());
  if (const std::string why = why_not(handle, keys, *stack); !why.empty() && !try_others(handle, keys, *stack)) {
    return differs(why, handle, keys, stack);
  }
  const TapeOpId id(cursor_++);
  TapeOp& op = tape_->op(id);
  bool changed = false;
  if (!take_numbers(op, *stack, changed)) {
    --cursor_;
    return differs(name_with_line(*tape_, op) + " gets one tensor from two places", handle, keys, stack);
  }
  if (op.random_order >= 0 && mode_ == Mode::kStep) {
    const bool seeded = take_seed(op.jump);
    refreshed_ |= seeded && tape_ == own_;
    changed |= seeded;
    mark_draw(op, changed);
  }
  if (changed) note_changed(id);
  if (changed && mode_ == Mode::kStep && numbers().has_run(id)) take_back_numbers();
  if (op.role == Role::kKernel && tells_value(op.handle)) {
    tell(id, stack);
  } else if (op.role == Role::kView && tells_value(op.handle)) {
    decide(id, stack);
  } else if (op.role == Role::kKernel) {
    answer_with_shells(op, stack);
  } else {
    run_for_real(op, keys, stack);
  }
  if (mode_ == Mode::kStep && (changes_ || !decided()) && !still_holds(id))
    leave(name_with_line(*tape_, op) + " leads to other numbers that are read on the host");
}

// In a section: ends the user's optimizer.step(); end() tells the caller why. In a step: what is left of it runs
// eagerly.
void Matcher::differs(const std::string& how, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  if (mode_ == Mode::kSection) {
    mismatch_ = how;
    throw std::runtime_error(how);
  }
  note_replaced(op, *stack);
  const bool other = cursor_ >= end_ || !(tape_->ops[cursor_].handle == op);
  if (other && mode_ == Mode::kStep) other_operator_ = {static_cast<std::int64_t>(cursor_), full_name(op)};
  leave(how);
  run_leaf(op, keys, stack);
}

// Where the step differs by a tensor that it has come by: next(iterator).
void Matcher::note_replaced(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  if (mode_ != Mode::kStep || cursor_ >= end_ || !(tape_->ops[cursor_].handle == handle)) return;
  const TapeOp& op = tape_->ops[cursor_];
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    if (op.tensors[i].kind == TensorRef::Kind::kNone) continue;
    for_each_tensor(op.tensors[i], stack[stack.size() - op.tensors.size() + i],
                    [&](SlotId slot, const at::Tensor& tensor) {
                      if (!slot.valid() || !tensor.defined()) return;
                      Block& block = tape_->blocks[tape_->slots[slot.index()].block.index()];
                      block.replaced |=
                          block.found && !block.of_python && place_of(tensor).block != tape_->slots[slot.index()].block;
                    });
  }
}

std::string Matcher::why_not(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                             const torch::jit::Stack& stack) const {
  const std::string who = mode_ == Mode::kSection ? "the optimizer" : "the step";
  if (cursor_ >= end_) return who + " does more operations than were recorded";
  const TapeOp& op = tape_->ops[cursor_];
  const bool same = op.lifted_copy ? lifts_host_data(handle) : op.handle == handle;
  const auto recorded = [&] { return name_with_line(*tape_, op); };
  if (!same) return who + " calls " + full_name(handle) + " where " + recorded() + " was recorded";
  if (op.random_order >= 0 && mode_ == Mode::kStep && !jumps_alike(op.jump))
    return who + " sets the random generator otherwise than was recorded";
  const std::size_t count = handle.schema().arguments().size();
  std::string other_view;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string what = why_not_argument(op, i, stack[stack.size() - count + i]);
    if (what.empty()) continue;
    other_view = who + " gives " + recorded() + " " + what;
    if (op.tensors[i].kind != TensorRef::Kind::kNone || !views_may_move(op)) return other_view;
  }
  if (!other_view.empty() && !gives_such_views(op, keys, stack)) return other_view;
  if (!op.lifted_copy && !one_to_one(op, stack))
    return who + " gives " + recorded() + " other tensors than were recorded";
  if (!shared_as_lifted(op, stack))
    return who + " writes into an array over whose memory " + recorded() + " finds a tensor";
  return {};
}

bool Matcher::shared_as_lifted(const TapeOp& op, const torch::jit::Stack& stack) const {
  bool fine = true;
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    if (op.tensors[i].kind == TensorRef::Kind::kNone) continue;
    for_each_tensor(op.tensors[i], stack[stack.size() - arguments_on_stack(op) + i],
                    [&](SlotId slot, const at::Tensor& tensor) {
                      if (!slot.valid() || !tensor.defined() || !tensor.has_storage()) return;
                      const Block& block = tape_->blocks[tape_->slots[slot.index()].block.index()];
                      if (lifts_host_data(op.handle) || op.lifted_copy) {
                        fine = fine && block.shared == of_another_library(tensor.storage());
                      } else if (block.shared && place_of(tensor).block.valid()) {
                        fine = fine && same_content(tensor, block.tensor);
                      }
                    });
    if (op.lifted_copy) break;
  }
  return fine;
}

std::string Matcher::why_not_argument(const TapeOp& op, std::size_t i, const c10::IValue& value) const {
  if (op.tensors[i].kind != TensorRef::Kind::kNone) {
    const bool real = op.role != Role::kKernel || op.lifted_copy;
    return same_tensors(op.tensors[i], value, real) ? "" : "another tensor than was recorded";
  }
  if (is_number_of_the_same_kind(op, i, value)) return {};
  if (is_number_tensor(value) || value.isTensor()) return "a tensor or number of another kind than was recorded";
  if (value.isGenerator() && op.arguments[i].isGenerator())
    return part_of_generator(value.toGenerator()) == op.drawn_from ? "" : "another random generator than was recorded";
  return value == op.arguments[i]
             ? ""
             : "another value of '" + op.handle.schema().arguments()[i].name() + "' than was recorded";
}

bool Matcher::take_numbers(TapeOp& op, const torch::jit::Stack& stack, bool& changed) {
  bool fine = true;
  const std::size_t count = arguments_on_stack(op);
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[stack.size() - count + i];
    if (op.tensors[i].kind == TensorRef::Kind::kNone) {
      if (!is_number_of_the_same_kind(op, i, value)) continue;
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
      if (!block.of_python || place_of(tensor).block.valid() || !take_content(tensor, block, op)) return;
      changed = true;
      if (a_user_has_run(id)) take_back_numbers();
    });
  }
  refreshed_ |= changed && op.section < 0 && tape_ == own_;
  return fine;
}

// Made anew by Python: the recorded tensor, which the executor has bound, takes its content. Host ops take it as it is.
bool Matcher::take_content(const at::Tensor& from, const Block& constant, const TapeOp& op) {
  const BlockId block = tape_->slots[constant.owner.index()].block;
  if (op.role == Role::kHost) return false;
  if (mode_ == Mode::kSection && lifts_host_data(op.handle) && !constant.refreshed) return false;
  taken_[block.index()] = true;
  const bool changed = !same_content(from, constant.tensor);
  if (changed && mode_ == Mode::kStep) other_content_[block.index()] = changes_ = true;
  copy_bytes(from.storage(), constant.tensor.storage());
  passing_[from.storage().unsafeGetStorageImpl()] = {{block, 0, 0}};
  kept_.push_back(watched(from.storage()));
  return changed;
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
  try {
    return work_out();
  } catch (...) {
    told_in_vain_ = true;
    throw;
  }
}

// Runs the step up to this op, and answers with what it tells.
void Matcher::tell(TapeOpId op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, arguments_on_stack(tape_->op(op)));
  struct AsPythonHasIt {
    const OfGeneratorParts<bool>& moved;
    GeneratorState python;
    ~AsPythonHasIt() { python.restore(moved); }
  } const at_end{tape_->moved, generators_now()};
  python_generator_[0].restore(tape_->moved);
  for (c10::IValue& value : aside([&] { return numbers().tell(op); })) stack->push_back(std::move(value));
}

// ---- Decisions (data_guards.h)

void Matcher::note_changed(TapeOpId op) {
  tape_->op(op).varies = true;
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

// A number that is known before the step. Worked out anew where it was recorded, or seen before this call, with other
// numbers than Python's own now.
void Matcher::decide(TapeOpId id, torch::jit::Stack* stack) {
  TapeOp& op = tape_->op(id);
  const auto guard = std::find_if(tape_->data_guards.begin(), tape_->data_guards.end(),
                                  [&](const DataGuard& g) { return TapeOpId(g.op) == id; });
  const bool known = guard == tape_->data_guards.end() || (decided() && !(changes_ && differs_in(*guard)));
  if (known) return answer_with_shells(op, stack);
  torch::jit::drop(*stack, arguments_on_stack(op));
  const c10::IValue number = aside([&] { return WorkedOut(*tape_, inputs_).number(*guard); });
  stack->push_back(number);
  if (!op.asks_shape) op.values[0] = number;  // another shape is another recording
}

// Of what ops that are no kernels read on the host: is it as recorded, where all that leads there has come with `op`, or
// the op that was recorded after the reading comes next?
bool Matcher::still_holds(TapeOpId op) {
  for (const DataGuard& guard : tape_->data_guards) {
    const bool leads = !guard.needs.empty() && TapeOpId(guard.needs.back()) == op;
    const bool read = guard.at == static_cast<std::int32_t>(op.index()) + 1;
    if (guard.op >= 0 || !(leads || read) || (decided() && !differs_in(guard))) continue;
    if (!aside([&] { return WorkedOut(*tape_, inputs_).holds(guard); })) return false;
  }
  return true;
}

// ---- Tensors

Matcher::Place Matcher::place_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  auto it = passing_.find(storage);
  if (it == passing_.end()) {
    it = residents_.find(storage);
    if (it == residents_.end() || mode_ != Mode::kSection) return {};
  }
  const std::vector<Part>& parts = it->second;
  if (parts.size() == 1 || tensor.numel() == 0) return {parts[0].block, parts[0].start_bytes};
  const auto [start, end] = span_bytes(tensor);
  for (const Part& part : parts) {
    if (part.start_bytes <= start && end <= part.end_bytes) return {part.block, part.start_bytes};
  }
  return {};
}

bool Matcher::same_tensors(const TensorRef& ref, const c10::IValue& value, bool real) const {
  bool same = true;
  return for_each_tensor(
             ref, value,
             [&](SlotId slot, const at::Tensor& tensor) { same = same && same_tensor(slot, tensor, real); }) &&
         same;
}

// Tensors that Python has made anew stand for constants one to one.
bool Matcher::one_to_one(const TapeOp& op, const torch::jit::Stack& stack) const {
  std::map<BlockId, const c10::StorageImpl*> standing;
  std::map<const c10::StorageImpl*, BlockId> stands_for;
  bool fine = true;
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    if (op.tensors[i].kind == TensorRef::Kind::kNone) continue;
    for_each_tensor(op.tensors[i], stack[stack.size() - op.tensors.size() + i],
                    [&](SlotId slot, const at::Tensor& tensor) {
                      if (!slot.valid() || place_of(tensor).block.valid()) return;
                      const BlockId block = tape_->slots[slot.index()].block;
                      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
                      fine = fine && standing.try_emplace(block, storage).first->second == storage &&
                             stands_for.try_emplace(storage, block).first->second == block;
                    });
  }
  return fine;
}

// `real`: the op will look at the tensor itself, not at the recorded one.
bool Matcher::same_tensor(SlotId id, const at::Tensor& tensor, bool real) const {
  if (!id.valid()) return !tensor.defined();
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const Slot& slot = tape_->slots[id.index()];
  const Place place = place_of(tensor);
  if (place.block.valid()) {
    return place.block == slot.block &&
           (slot.meta.describes(tensor, place.start_bytes) || lies_elsewhere(id, tensor, place));
  }
  const Block& block = tape_->blocks[slot.block.index()];
  if (!block.of_python || !slot.meta.describes(tensor)) return false;
  if (!real && (taken_[slot.block.index()] || tensor.storage().nbytes() != block.tensor.storage().nbytes()))
    return false;
  return !block.fixed || same_content(tensor, block.tensor);
}

// ---- Answers

void Matcher::run_for_real(const TapeOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run_leaf(op.handle, keys, stack);
  // Filled on the host in a moment: whoever reads it takes its content (take_content)
  if (returns_uninitialized(op.handle) &&
      tape_->blocks[tape_->slots[op.results[0].slots[0].index()].block.index()].of_python)
    return;
  if (!take_places(op, *stack)) {
    const std::string how =
        name_with_line(*tape_, op) + " looks elsewhere than the tensor that stands for it did before";
    if (mode_ == Mode::kSection) {
      mismatch_ = how;
      throw std::runtime_error(how);
    }
    return leave(how);
  }
  const auto pass = [&](SlotId id, const at::Tensor& tensor) {
    if (!id.valid() || !tensor.defined() || !tensor.has_storage() || place_of(tensor).block.valid()) return;
    passing_[tensor.storage().unsafeGetStorageImpl()] = {{tape_->slots[id.index()].block, 0, 0}};
    kept_.push_back(watched(tensor.storage()));
  };
  const std::size_t first = stack->size() - op.results.size();
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    const TensorRef& ref = op.results[r];
    const c10::IValue& value = (*stack)[first + r];
    if (ref.kind == TensorRef::Kind::kTensor) {
      pass(ref.slots[0], value.toTensor());
    } else if (ref.kind == TensorRef::Kind::kTensorList) {
      const std::vector<at::Tensor> list = value.toTensorVector();
      for (std::size_t i = 0; i < std::min(list.size(), ref.slots.size()); ++i) pass(ref.slots[i], list[i]);
    }
  }
}

void Matcher::answer_with_shells(const TapeOp& op, torch::jit::Stack* stack) {
  const std::size_t count = arguments_on_stack(op);
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    const TensorRef& ref = op.results[r];
    switch (ref.kind) {
      case TensorRef::Kind::kTensor: stack->emplace_back(shell(ref.slots[0], arguments, op)); break;
      case TensorRef::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        for (const SlotId slot : ref.slots) list.push_back(shell(slot, arguments, op));
        stack->emplace_back(std::move(list));
        break;
      }
      default: stack->push_back(op.values[r]); break;
    }
  }
}

// The tensor that stands for a result: an in-place op's own argument, a resident, or a new one over its block's shell.
at::Tensor Matcher::shell(SlotId id, const torch::jit::Stack& arguments, const TapeOp& op) {
  if (!id.valid()) return {};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const TensorRef& ref = op.tensors[i];
    if (ref.kind == TensorRef::Kind::kTensor && ref.slots[0] == id && arguments[i].isTensor())
      return arguments[i].toTensor();
  }
  const Slot& slot = tape_->slots[id.index()];
  const Block& block = tape_->blocks[slot.block.index()];
  if (block.external && block.input < 0) return make_tensor(block.tensor.storage(), slot.meta);
  if (block.external) {
    const at::Tensor& input = inputs_.at(static_cast<std::size_t>(block.input));
    TensorMeta meta = slot.meta;
    meta.storage_offset += span_bytes(input).first / static_cast<std::int64_t>(meta.dtype.itemsize());
    return make_tensor(input.storage(), meta);
  }
  std::optional<Shell>& known = shells_[slot.block.index()];
  if (is_held(known)) return make_tensor(c10::Storage(known->lock()), slot.meta);
  const c10::Storage storage = shell_storage(block.bytes, block.device);
  // Read on the host in a moment; the guard has just seen that it is as recorded
  for (const DataGuard& guard : tape_->data_guards) {
    const bool all = guard.tensor.valid() && tape_->slots[guard.tensor.index()].block == slot.block &&
                     static_cast<std::int64_t>(guard.content.size()) == block.bytes;
    if (!all) continue;
    at::DataPtr memory = c10::GetAllocator(block.device.type())->allocate(guard.content.size());
    device_at(block.device).from_host(memory.get(), guard.content.data(), block.bytes);
    fill_shell(storage, std::move(memory), guard.content.size());
  }
  passing_[storage.unsafeGetStorageImpl()] = {{slot.block, 0, 0}};
  known = watched(storage);
  return make_tensor(storage, slot.meta);
}

}  // namespace stowage::runtime
