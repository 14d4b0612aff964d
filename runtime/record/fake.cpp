// Where a step on FakeTensors differs from the same step on real ones:
//
//   constants   torch.tensor(3.) makes a real tensor that is lifted into a new fake      both become one external constant
//   gradients   the engine adds fakes out of place, real tensors into the first of them   add becomes add_ where the first dies
//   costs       nothing is computed                                                       estimated from shapes
#include "runtime/record/fake.h"

#include <algorithm>

#include "runtime/record/estimate.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

// The block becomes a constant that exists before the step, and its creator is not replayed.
void make_external(Tape& tape, BlockId id) {
  Block& block = tape.blocks[id.index()];
  tape.op(block.creator).role = TapeOp::Role::kConstant;
  std::erase(tape.op(block.creator).creates, id);
  tape.op(block.creator).born.resize(tape.op(block.creator).creates.size());
  block.external = true;
  block.kind = BufferKind::kConstant;
  block.name = "constant_" + std::to_string(id.value);
  tape.slots[block.owner.index()].origin = Slot::Origin::kExternal;
}

void settle_constants(Tape& tape) {
  for (TapeOp& op : tape.ops) {
    if (!lifts_host_data(op.handle)) continue;
    const std::vector<BlockId> lifted = op.creates;
    for (const BlockId block : lifted) make_external(tape, block);
    for (const SlotId slot : op.tensors[0].slots) {
      if (!slot.valid()) continue;
      const BlockId source = tape.slots[slot.index()].block;
      if (!tape.blocks[source.index()].external) make_external(tape, source);
    }
  }
}

std::vector<std::size_t> last_access(const Tape& tape) {
  std::vector<std::size_t> last(tape.blocks.size(), 0);
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    for_each_access(tape, tape.ops[i], [&](BlockId block, Access) { last[block.index()] = i; });
  }
  for (const SlotId slot : tape.returned) {
    if (slot.valid()) last[tape.slots[slot.index()].block.index()] = SIZE_MAX;
  }
  return last;
}

// The sum takes the place of its first term: same metadata over the whole of it, and nobody looks at the term
// afterwards. (Real tensors are also added into a view that alone holds a larger storage; that is not told here, which
// costs a buffer now and then.)
bool could_add_in_place(const Tape& tape, const TapeOp& op, std::size_t index, const std::vector<std::size_t>& last) {
  const bool in_engine = op.backward && !op.grad_mode;  // with grad mode it is a checkpoint that recomputes
  if (!in_engine || full_name(op.handle) != "aten::add.Tensor" || op.creates.size() != 1) return false;
  if (!op.tensors[0].slots[0].valid()) return false;
  const Slot& term = tape.slots[op.tensors[0].slots[0].index()];
  const Slot& sum = tape.slots[tape.blocks[op.creates[0].index()].owner.index()];
  const Block& block = tape.blocks[term.block.index()];
  return !block.external && last[term.block.index()] == index && block.bytes == tape.blocks[sum.block.index()].bytes &&
         term.meta.sizes == sum.meta.sizes && term.meta.strides == sum.meta.strides &&
         term.meta.dtype == sum.meta.dtype;
}

void sum_gradients_in_place(Tape& tape) {
  std::vector<std::size_t> last = last_access(tape);
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    TapeOp& op = tape.ops[i];
    if (!could_add_in_place(tape, op, i, last)) continue;
    const BlockId sum = op.creates[0];
    const BlockId term = tape.slots[op.tensors[0].slots[0].index()].block;
    op.handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Tensor");
    op.creates.clear();
    op.born.clear();
    for (Slot& slot : tape.slots) {
      if (slot.block != sum) continue;
      slot.block = term;
      slot.origin = Slot::Origin::kAlias;
    }
    last[term.index()] = last[sum.index()];
  }
}

}  // namespace

void settle_fakes(Tape& tape) {
  settle_constants(tape);
  sum_gradients_in_place(tape);
  for (TapeOp& op : tape.ops) op.cost_ns = estimated_cost_ns(tape, op);
}

}  // namespace stowage::runtime
