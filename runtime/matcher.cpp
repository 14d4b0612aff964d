#include "runtime/matcher.h"

#include <ATen/core/List.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/op_traits.h"
#include "runtime/recorder.h"
#include "runtime/tensors.h"

namespace stowage::runtime {
namespace {

using Role = TapeOp::Role;

bool is_number_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

void copy_content(const at::Tensor& from, const at::Tensor& to) {
  const std::size_t bytes = std::min(from.storage().nbytes(), to.storage().nbytes());
  if (bytes > 0 && from.storage().data() != to.storage().data()) {
    std::memcpy(to.storage().mutable_data(), from.storage().data(), bytes);
  }
}

}  // namespace

Matcher::Matcher(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {
  shells_.resize(tape_->slots.size());
  for (const Block& block : tape_->blocks) {
    if (block.external && block.tensor.defined()) known_[block.tensor.unsafeGetTensorImpl()] = block.owner;
  }
  for (const TapeOp& op : tape_->ops) {
    if (op.role != Role::kHost) continue;
    for_each_access(*tape_, op, [&](BlockId block, Access access) {
      const bool external = tape_->blocks[block.index()].external;
      const bool listed = std::find(host_written_.begin(), host_written_.end(), block) != host_written_.end();
      if (access == Access::kWrite && external && !listed) host_written_.push_back(block);
    });
  }
}

void Matcher::adopt_shell(const at::Tensor& tensor, SlotId id) {
  const Slot& slot = tape_->slots[id.index()];
  become_shell(tensor, slot.meta, tape_->blocks[slot.block.index()].bytes);
  known_[tensor.unsafeGetTensorImpl()] = id;
  shells_[id.index()] = tensor;
}

std::vector<c10::Storage> Matcher::host_written() const {
  std::vector<c10::Storage> storages;
  for (const BlockId block : host_written_) storages.push_back(tape_->blocks[block.index()].tensor.storage());
  return storages;
}

void Matcher::remember() {
  saved_.clear();
  for (const BlockId block : host_written_) {
    const c10::Storage& storage = tape_->blocks[block.index()].tensor.storage();
    saved_.push_back({storage, std::string(static_cast<const char*>(storage.data()), storage.nbytes())});
  }
}

void Matcher::roll_back() {
  for (const SavedBytes& saved : saved_) std::memcpy(saved.storage.mutable_data(), saved.bytes.data(), saved.bytes.size());
  saved_.clear();
}

void Matcher::begin(int section) {
  const Section& range = tape_->sections.at(static_cast<std::size_t>(section));
  mismatch_.clear();
  cursor_ = static_cast<std::size_t>(range.from);
  end_ = static_cast<std::size_t>(range.to);
  passing_.clear();
  passing_tensors_.clear();
  intercept_ = std::make_unique<Intercept>(*this);
}

std::string Matcher::end() {
  intercept_.reset();
  passing_.clear();
  passing_tensors_.clear();
  if (mismatch_.empty() && cursor_ != end_) mismatch_ = "the optimizer did fewer operations than were recorded";
  return mismatch_;
}

void Matcher::differs(const std::string& how) {
  mismatch_ = how;
  throw std::runtime_error(how);  // ends the user's optimizer.step(); end() tells the caller why
}

TapeOp* Matcher::next(const c10::OperatorHandle& op) {
  if (cursor_ >= end_) differs("the optimizer does more operations than were recorded");
  TapeOp& expected = tape_->ops[cursor_];
  if (!(expected.handle == op)) differs("the optimizer calls " + full_name(op) + " where " + full_name(expected.handle) + " was recorded");
  ++cursor_;
  return &expected;
}

void Matcher::on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (is_elementwise_list_op(op)) {
    match_per_element(op, keys, stack);
  } else {
    match(op, keys, stack);
  }
}

void Matcher::match_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<torch::jit::Stack> parts = split_list_op(op, *stack);
  if (parts.empty()) return match(op, keys, stack);
  for (torch::jit::Stack& part : parts) match(op, keys, &part);
  join_results(op, parts, stack);
}

void Matcher::match(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  TapeOp& op = *next(handle);
  compare_arguments(op, *stack);
  if (op.role == Role::kKernel) {
    answer_with_shells(op, stack);
  } else {
    run_for_real(op, keys, stack);
  }
}

void Matcher::compare_arguments(TapeOp& op, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - op.arguments.size();
  for (std::size_t i = 0; i < op.arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (op.tensors[i].kind != TensorRef::Kind::kNone) {
      if (!same_tensors(op.tensors[i], value, op.role != Role::kKernel)) {
        differs("the optimizer gives " + full_name(op.handle) + " another tensor than was recorded");
      }
      continue;
    }
    if (value.isTensor() != op.arguments[i].isTensor() || value.isTensorList() != op.arguments[i].isTensorList()) {
      differs("the optimizer gives " + full_name(op.handle) + " a tensor where a number was recorded, or the reverse");
    }
    if (is_number_tensor(value) && value.toTensor().scalar_type() != op.arguments[i].toTensor().scalar_type()) {
      differs("the optimizer gives " + full_name(op.handle) + " a number of another type");
    }
    op.arguments[i] = value;
  }
}

bool Matcher::same_tensors(const TensorRef& ref, const c10::IValue& value, bool real) const {
  switch (ref.kind) {
    case TensorRef::Kind::kTensor: return value.isTensor() && same_tensor(ref.slots[0], value.toTensor(), real);
    case TensorRef::Kind::kTensorList: {
      if (!value.isTensorList()) return false;
      const std::vector<at::Tensor> list = value.toTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!same_tensor(ref.slots[i], list[i], real)) return false;
      }
      return true;
    }
    case TensorRef::Kind::kOptionalTensorList: {
      if (!value.isOptionalTensorList()) return false;
      const auto list = value.toOptionalTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!same_tensor(ref.slots[i], list[i].value_or(at::Tensor()), real)) return false;
      }
      return true;
    }
    case TensorRef::Kind::kNone: break;
  }
  return false;
}

bool Matcher::same_tensor(SlotId id, const at::Tensor& tensor, bool real) const {
  if (!id.valid()) return !tensor.defined();
  if (!tensor.defined()) return false;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (const auto it = known_.find(impl); it != known_.end()) return it->second == id;
  if (const auto it = passing_.find(impl); it != passing_.end()) return it->second == id;
  // A number that has just been made into a tensor: host ops take it as it is, replayed ops find it in the recorded one.
  const Slot& slot = tape_->slots[id.index()];
  const Block& block = tape_->blocks[slot.block.index()];
  if (block.external && block.kind == BufferKind::kConstant) {
    if (!slot.meta.describes(tensor) || (!real && tensor.dim() != 0)) return false;
    if (!real) copy_content(tensor, block.tensor);
    return true;
  }
  // A view that C++ made of a known storage (detach and the like).
  return block.external && block.tensor.defined() && slot.meta.describes(tensor) &&
         tensor.storage().unsafeGetStorageImpl() == block.tensor.storage().unsafeGetStorageImpl();
}

void Matcher::run_for_real(TapeOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (lifts_host_data(op.handle) && op.tensors[0].slots[0].valid()) {
    // Made anew by the optimizer's Python: the recorded tensor, which the executor has bound, takes its content.
    const Block& block = tape_->blocks[tape_->slots[op.tensors[0].slots[0].index()].block.index()];
    if (block.refreshed) copy_content((*stack)[stack->size() - op.arguments.size()].toTensor(), block.tensor);
  }
  run_leaf(op.handle, keys, stack);
  const auto pass = [&](SlotId id, const at::Tensor& tensor) {
    if (!id.valid() || !tensor.defined()) return;
    if (known_.count(tensor.unsafeGetTensorImpl()) > 0) return;
    passing_[tensor.unsafeGetTensorImpl()] = id;
    passing_tensors_.push_back(tensor);
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
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(op.arguments.size()), stack->end());
  torch::jit::drop(*stack, op.arguments.size());
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

// The tensor that stands for a result: an in-place op's own argument, a resident, or a shell made once.
const at::Tensor& Matcher::shell(SlotId id, const torch::jit::Stack& arguments, const TapeOp& op) {
  static const at::Tensor undefined;
  if (!id.valid()) return undefined;
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    const TensorRef& ref = op.tensors[i];
    if (ref.kind == TensorRef::Kind::kTensor && ref.slots[0] == id) return arguments[i].toTensor();
  }
  if (!shells_[id.index()].defined()) {
    const Slot& slot = tape_->slots[id.index()];
    shells_[id.index()] = make_shell(slot.meta, tape_->blocks[slot.block.index()].bytes);
    known_[shells_[id.index()].unsafeGetTensorImpl()] = id;
  }
  return shells_[id.index()];
}

}  // namespace stowage::runtime
