// Views that lie elsewhere in each call: what Python cuts out of a tensor at a place of its own choice.
//
//   recorded   slice(queue, 1, 0, 4) -> v    copy_(v, keys)        v: columns 0 to 4 of the block
//   this call  slice(queue, 1, 4, 8) -> v    copy_(v, keys)        v: columns 4 to 8; the same shape and strides
//
// Places are numbers that Python gives, as a learning rate is: a view is the recorded one when it has its shape, strides
// and dtype and looks into the same block. Where in it, goes onto the tape before the op that uses it runs; what the plan
// knows of dependencies and lives it knows of whole blocks. A tensor has one place in a call, since the plan may run its
// users in another order: where another one has stood for it already, the step is another step.
//
// Views that no op on the tape makes (autograd's own, of what it has saved) follow those of their block. So does what the
// step gets in a way that nobody can follow: an iterator over parts of one tensor.
#include "runtime/replay/matcher.h"
#include "runtime/replay/results.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {

using Role = TapeOp::Role;

bool Matcher::views_may_move(const TapeOp& op) const {
  return op.role == Role::kView && tape_->below_autograd && !tells_value(op.handle) && !changes_metadata(op.handle);
}

// Asked on a copy of the arguments: views change nothing.
bool Matcher::gives_such_views(const TapeOp& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack) const {
  const auto count = static_cast<std::ptrdiff_t>(op.arguments.size());
  torch::jit::Stack results(stack.end() - count, stack.end());
  try {
    run_leaf(op.handle, keys, &results);
  } catch (const std::exception&) {
    return false;  // it will raise where it belongs
  }
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    const TensorRef& ref = op.results[r];
    if (ref.kind == TensorRef::Kind::kTensor) {
      if (!is_such_view(ref.slots[0], results[r].toTensor())) return false;
    } else if (ref.kind == TensorRef::Kind::kTensorList) {
      const std::vector<at::Tensor> list = results[r].toTensorVector();
      if (list.size() != ref.slots.size()) return false;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!is_such_view(ref.slots[i], list[i])) return false;
      }
    } else {
      return false;
    }
  }
  return true;
}

bool Matcher::is_such_view(SlotId id, const at::Tensor& tensor) const {
  if (!id.valid() || !tensor.defined()) return id.valid() == tensor.defined();
  const Place place = place_of(tensor);
  const Slot& slot = tape_->slots[id.index()];
  TensorMeta now = TensorMeta::of(tensor, place.block.valid() ? place.start_bytes : 0);
  now.storage_offset = slot.meta.storage_offset;
  // Where parts of it are taken by value, it may be a part of any other
  const auto taken = [&](BlockId block) { return !block.valid() || tape_->blocks[block.index()].only_read; };
  const bool anywhere = taken(slot.block) && taken(place.block);
  return (place.block == slot.block || anywhere) && now == slot.meta;
}

// A view that no op makes, and that nothing has stood for in this call.
bool Matcher::lies_elsewhere(SlotId id, const at::Tensor& tensor, const Place& place) const {
  const Slot& slot = tape_->slots[id.index()];
  const bool found = tape_->blocks[slot.block.index()].found;
  const bool follows = slot.origin == Slot::Origin::kAlias && moves_[place.block.index()];
  return !slot.made && (found || follows) && places_[id.index()] == PlaceNow::kUnseen && is_such_view(id, tensor);
}

// The slot lies where this tensor does. False where another one has stood for it elsewhere.
bool Matcher::take_place(SlotId id, const at::Tensor& tensor) {
  const Place place = place_of(tensor);
  Slot& slot = tape_->slots[id.index()];
  PlaceNow& now = places_[id.index()];
  if (place.block != slot.block || !is_such_view(id, tensor)) return true;  // told by why_not()
  const bool moves = !slot.meta.describes(tensor, place.start_bytes);
  if (moves && now != PlaceNow::kUnseen) return false;
  if (now == PlaceNow::kUnseen) now = moves ? PlaceNow::kOther : PlaceNow::kSame;
  if (!moves) return true;
  slot.meta.storage_offset = TensorMeta::of(tensor, place.start_bytes).storage_offset;
  slot.moved = true;
  moves_[slot.block.index()] = true;
  if (mode_ == Mode::kStep) changes_ = true;
  has_moved(id);
  return true;
}

bool Matcher::take_places(const TapeOp& op, const torch::jit::Stack& stack) {
  if (!views_may_move(op)) return true;
  bool fine = true;
  const auto take = [&](SlotId slot, const at::Tensor& tensor) {
    if (slot.valid() && tensor.defined() && tensor.has_storage()) fine = fine && take_place(slot, tensor);
  };
  each_result(op, stack, take);
  return fine;
}

// A plan may have run users that come later in the program.
void Matcher::has_moved(SlotId slot) {
  if (mode_ != Mode::kStep) return;
  refreshed_ |= tape_ == own_;
  if (tape_->reads.empty()) return;
  for (std::size_t i = cursor_; i < end_; ++i) {
    if (!numbers().has_run(TapeOpId(i))) continue;
    for (const TensorRef& ref : tape_->ops[i].tensors) {
      if (std::find(ref.slots.begin(), ref.slots.end(), slot) != ref.slots.end()) return take_back_numbers();
    }
  }
}

bool Matcher::hand_over_places(std::size_t ops, Tape& next, std::vector<PlaceNow>& places,
                               std::vector<bool>& moves) const {
  bool fine = true;
  const auto pair = [&](const std::vector<TensorRef>& ours, const std::vector<TensorRef>& theirs) {
    for (std::size_t k = 0; k < ours.size(); ++k) {
      for (std::size_t s = 0; s < ours[k].slots.size(); ++s) {
        const SlotId x = ours[k].slots[s], y = theirs[k].slots[s];
        if (!x.valid() || places_[x.index()] == PlaceNow::kUnseen) continue;
        const std::int64_t offset = tape_->slots[x.index()].meta.storage_offset;
        Slot& slot = next.slots[y.index()];
        PlaceNow& now = places[y.index()];
        const bool other = slot.meta.storage_offset != offset;
        fine = fine && !(other && now != PlaceNow::kUnseen);
        if (now != PlaceNow::kUnseen) continue;
        now = other ? PlaceNow::kOther : PlaceNow::kSame;
        if (!other) continue;
        slot.meta.storage_offset = offset;
        slot.moved = true;
        moves[slot.block.index()] = true;
      }
    }
  };
  for (std::size_t i = 0; i < ops; ++i) {
    pair(tape_->ops[i].tensors, next.ops[i].tensors);
    pair(tape_->ops[i].results, next.ops[i].results);
  }
  return fine;
}

}  // namespace stowage::runtime
