#include "runtime/replay/matcher.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "runtime/memory/allocator.h"
#include "runtime/replay/arguments.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/shape_questions.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/split.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

using Role = TapeOp::Role;

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
    if (!block.external || block.input >= 0 || !(block.tensor.defined() || block.untouched)) continue;
    const auto is_it = [&](SlotId slot) { return slot.valid() && tape.slots[slot.index()].block == BlockId(i); };
    const bool unused = block.kind == BufferKind::kConstant && !block.found && !block.of_python && tape.below_autograd;
    // The recorded call could reach it; this one may come by it
    if (unused && std::none_of(tape.returned.begin(), tape.returned.end(), is_it)) continue;
    c10::StorageImpl* storage =
        block.untouched ? block.untouched->_unsafe_get_target() : block.tensor.storage().unsafeGetStorageImpl();
    storages[storage] = {{BlockId(i), 0, 0}};
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
  if (mode_ == Mode::kLeft) {
    run_left(op, keys, stack);
  } else if (telling_) {
    run_leaf(op, keys, stack);
  } else if (told_in_vain_) {
    throw std::runtime_error(kCaughtText);
  } else if (reshapes_sparse(op, *stack)) {
    run_leaf(op, keys, stack);
  } else if (is_elementwise_list_op(op)) {
    match_per_element(op, keys, stack);
  } else if (mode_ == Mode::kStep && arrays_.written()) {
    leave("the step writes into its NumPy array");
    run_where_left(op, keys, stack);
  } else if (mode_ == Mode::kStep && looks_at_told_state(*stack, op.schema().arguments().size())) {
    leave("the step looks into a state of a random generator");
    run_where_left(op, keys, stack);
  } else {
    ask_for_shape(op, keys, *stack);
    if (mode_ == Mode::kLeft) return run_where_left(op, keys, stack);
    match(op, keys, stack);
  }
}

// Autograd begins each node of a backward pass with the dispatch keys that the thread had when the pass began. Where
// the step has left its recording within one, an eager budget that came then is to see the ops all the same.
void Matcher::run_left(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!budget_watches_ || thread_attached()) return run_leaf(op, keys, stack);
  attach_thread(true);
  op.callBoxed(stack);  // comes back here
}

// The op at which the step has just left its recording. `keys` are of before: an eager budget that has begun since is not
// among them.
void Matcher::run_where_left(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!budget_watches_) return run_leaf(op, keys, stack);
  if (!thread_attached()) attach_thread(true);
  op.callBoxed(stack);  // comes back to run_left()
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
    if (!as_recorded() && !change_where(as_recorded)) {
      const auto asks = std::find_if(tape_->ops.begin() + static_cast<std::ptrdiff_t>(cursor_), tape_->ops.end(),
                                     [&](const TapeOp& next) { return next.handle == op; });
      return leave((asks != tape_->ops.end() ? name_with_line(*tape_, *asks) : full_name(op)) + kOtherForm);
    }
  }
}

void Matcher::match_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<torch::jit::Stack> parts = split_list_op(op, *stack);
  if (parts.empty()) return match(op, keys, stack);
  for (torch::jit::Stack& part : parts) {
    if (mode_ == Mode::kLeft) {
      run_where_left(op, keys, &part);
    } else {
      match(op, keys, &part);
    }
  }
  join_results(op, parts, stack);
}

void Matcher::match(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  take_generators(*stack, handle.schema().arguments().size());
  const std::string why = why_not(handle, keys, *stack);
  const bool other_mode = why.empty() && !in_its_grad_mode() && !std::exchange(grad_mode_differed_, true);
  if ((!why.empty() || other_mode) && !try_others(handle, keys, *stack) && !why.empty())
    return differs(why, handle, keys, stack);
  if (!arrays_.empty() && writes_under_array(tape_->ops[cursor_]))
    return differs(name_with_line(*tape_, tape_->ops[cursor_]) + " writes into memory of which Python holds an array",
                   handle, keys, stack);
  const TapeOpId id(cursor_++);
  TapeOp& op = tape_->op(id);
  bool changed = false;
  if (!take_numbers(op, *stack, changed)) {
    if (changed) note_changed(id);
    --cursor_;
    note_scattered(op);
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
    torch::jit::Stack told = tell(id, stack);
    if (!tells_recorded_numbers(op, told)) told_otherwise_.push_back(id);
    for (c10::IValue& value : told) stack->push_back(std::move(value));
  } else if (op.role == Role::kView && tells_value(op.handle)) {
    decide(id, stack);
  } else if (op.form == TapeOp::Form::kUnsure && mode_ == Mode::kStep) {
    if (!wait_for_form(id, stack)) return differs(name_with_line(*tape_, op) + kOtherForm, handle, keys, stack);
  } else if (op.role == Role::kKernel) {
    answer_with_shells(op, stack);
  } else {
    run_for_real(op, keys, stack);
  }
  if (mode_ == Mode::kStep && (changes_ || !decided()) && !still_holds(id))
    leave(name_with_line(*tape_, op) + " leads to other numbers that are read on the host");
  if (mode_ == Mode::kStep && arrays_taken_back_)
    leave(name_with_line(*tape_, op) + " changes what a NumPy array of a tensor shows");
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
  if (mode_ == Mode::kStep) left_by_ = {static_cast<std::int64_t>(cursor_), full_name(op)};
  leave(how);
  run_where_left(op, keys, stack);
}

// Where the step differs by a tensor that it has come by: next(iterator).
void Matcher::note_replaced(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  if (mode_ != Mode::kStep || cursor_ >= end_ || !(tape_->ops[cursor_].handle == handle)) return;
  const TapeOp& op = tape_->ops[cursor_];
  bool other = !one_to_one(op, stack) || views_may_move(op);
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    const bool tensors = op.tensors[i].kind != TensorRef::Kind::kNone;
    other |= tensors && !why_not_argument(op, i, stack[stack.size() - op.tensors.size() + i]).empty();
  }
  if (other) note_scattered(op);
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

// It has been given other tensors than those that it comes by, as wholes or in part: parts of one storage where others
// were recorded, or one tensor in two places. A recording by value will serve.
void Matcher::note_scattered(const TapeOp& op) {
  if (tape_->by_value || op.section >= 0) return;
  for (const TensorRef& ref : op.tensors) {
    for (const SlotId id : ref.slots) {
      if (!id.valid()) continue;
      const Slot& slot = tape_->slots[id.index()];
      Block& block = tape_->blocks[slot.block.index()];
      block.scattered |= block.found && (block.of_python || slot.origin == Slot::Origin::kAlias);
    }
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
  if (refuses_number(handle, stack)) return who + " gives " + recorded() + " a number that it refuses";
  if (const KernelSettings now = KernelSettings::now(); now != tape_->settings[static_cast<std::size_t>(op.settings)])
    return who + " runs " + recorded() + " under another setting of PyTorch than was recorded: " +
           now.difference(tape_->settings[static_cast<std::size_t>(op.settings)]);
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

bool Matcher::in_its_grad_mode() const {
  return mode_ != Mode::kStep || cursor_ >= end_ || tape_->ops[cursor_].grad_mode == c10::GradMode::is_enabled();
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
  if (is_sparse(value) && !lies_aside(value.toTensor()))
    return "a sparse tensor whose indices or values the step has by themselves, too";
  if (is_number_of_the_same_kind(op, i, value)) return {};
  if (is_number_tensor(value) || value.isTensor()) return "a tensor or number of another kind than was recorded";
  if (value.isGenerator() && op.arguments[i].isGenerator())
    return part_of_generator(value.toGenerator()) == op.drawn_from ? "" : "another random generator than was recorded";
  return value == op.arguments[i]
             ? ""
             : "another value of '" + op.handle.schema().arguments()[i].name() + "' than was recorded";
}

// ---- Tensors

bool Matcher::lies_aside(const at::Tensor& sparse) const {
  return std::ranges::none_of(parts_of_sparse(sparse),
                              [&](const at::Tensor& part) { return place_of(part).block.valid(); });
}

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

bool Matcher::has_access(const at::Tensor& tensor, bool only_writes) const {
  const BlockId block = place_of(tensor).block;
  if (mode_ != Mode::kStep || !block.valid()) return false;
  return std::any_of(tape_->ops.begin(), tape_->ops.begin() + static_cast<std::ptrdiff_t>(cursor_),
                     [&](const TapeOp& op) {
                       bool found = false;
                       for_each_access(*tape_, op, [&](BlockId of, Access access) {
                         found |= of == block && (access == Access::kWrite || !only_writes);
                       });
                       return found;
                     });
}

bool Matcher::writes_under_array(const TapeOp& op) const {
  bool writes = false;
  for_each_access(*tape_, op, [&](BlockId block, Access access) {
    writes = writes || (access == Access::kWrite && arrays_.of([&](const c10::StorageImpl* storage) {
               const auto it = passing_.find(storage);
               return it != passing_.end() && std::any_of(it->second.begin(), it->second.end(),
                                                          [&](const Part& part) { return part.block == block; });
             }));
  });
  return writes;
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
                      if (!slot.valid() || !tensor.defined() || !tensor.has_storage()) return;
                      if (place_of(tensor).block.valid()) return;
                      const BlockId block = tape_->slots[slot.index()].block;
                      if (tape_->blocks[block.index()].by_value) return;
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
  if (tape_->blocks[slot.block.index()].by_value) return fits_by_value(slot, tensor, place);
  if (place.block.valid()) {
    return place.block == slot.block &&
           (slot.meta.describes(tensor, place.start_bytes) || lies_elsewhere(id, tensor, place));
  }
  const Block& block = tape_->blocks[slot.block.index()];
  if (!block.of_python || !slot.meta.describes(tensor)) return false;
  if (taken_[slot.block.index()]) return false;  // another tensor has stood for it, and ops may be waiting for that one
  if (!real && tensor.storage().nbytes() != block.tensor.storage().nbytes()) return false;
  return !block.fixed || same_content(tensor, block.tensor);
}

// Wherever it lies, but where an op of the step has written: nothing is there yet.
bool Matcher::fits_by_value(const Slot& slot, const at::Tensor& tensor, const Place& place) const {
  const Block& block = tape_->blocks[slot.block.index()];
  if (place.block.valid() && !tape_->blocks[place.block.index()].only_read) return false;
  TensorMeta now = TensorMeta::of(tensor);
  now.storage_offset = 0;
  if (!(now == slot.meta) || tensor.device() != block.device) return false;
  return !block.fixed || same_part(tensor.storage(), span_bytes(tensor).first, block.tensor.storage());
}

}  // namespace stowage::runtime
