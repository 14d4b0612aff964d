// Building an executor: everything about a plan that does not change from step to step.
#include <algorithm>
#include <map>

#include "runtime/executor.h"
#include "runtime/tensors.h"
#include "stowage/error.h"

namespace stowage::runtime {

Executor::Executor(std::shared_ptr<Tape> tape, Lowered lowered, Plan plan, std::shared_ptr<Arena> arena)
    : tape_(std::move(tape)),
      lowered_(std::move(lowered)),
      plan_(std::move(plan)),
      arena_(std::move(arena)),
      script_(*arena_, lowered_.graph.align) {
  if (plan_.graph_sha256 != lowered_.graph.sha256) throw InvalidPlan("the plan is for another graph: its graph_sha256 differs");
  tensors_.resize(tape_->slots.size());
  shells_.resize(tape_->slots.size());
  permanent_.resize(tape_->slots.size(), false);
  storages_.resize(tape_->blocks.size());
  keep_state_.resize(static_cast<std::size_t>(tape_->random_ops) + 1, false);
  states_.resize(keep_state_.size());
  bind_residents();
  write_instructions();
  write_lifetimes();
  write_script();
}

void Executor::bind_residents() {
  std::vector<bool> written(tape_->blocks.size(), false);
  for (const TapeOp& op : tape_->ops) {
    if (op.role != TapeOp::Role::kKernel) continue;
    for_each_access(*tape_, op, [&](BlockId block, Access access) {
      if (access == Access::kWrite) written[block.index()] = true;
    });
  }
  for (std::size_t i = 0; i < tape_->blocks.size(); ++i) {
    const Block& block = tape_->blocks[i];
    if (!block.external) continue;
    if (written[i]) mutated_.push_back(BlockId(i));
    if (block.input >= 0) continue;
    storages_[i] = block.tensor.storage();
  }
  for (std::size_t i = 0; i < tape_->slots.size(); ++i) {
    const Slot& slot = tape_->slots[i];
    const Block& block = tape_->blocks[slot.block.index()];
    if (!block.external || block.input >= 0) continue;
    permanent_[i] = true;
    tensors_[i] = slot.origin == Slot::Origin::kExternal ? block.tensor : make_alias(block.tensor.storage(), slot.meta);
  }
}

void Executor::write_instructions() {
  for (const Step& step : plan_.steps) {
    if (step.kind != Step::Kind::kRun) throw Error("this executor does not run plans that swap");
    Instruction instruction;
    instruction.op = lowered_.tape_op[step.op.index()];
    const TapeOp& op = tape_->op(instruction.op);
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      if (op.tensors[i].kind == TensorRef::Kind::kNone) continue;
      const bool shell = access_of(op, i) == Access::kNone;
      Argument argument{i, op.tensors[i].kind, {}};
      for (const SlotId id : op.tensors[i].slots) {
        argument.operands.push_back({id, shell});
        if (!shell || !id.valid() || shells_[id.index()].defined()) continue;
        const Slot& slot = tape_->slots[id.index()];
        shells_[id.index()] = make_shell(slot.meta, tape_->blocks[slot.block.index()].bytes);
      }
      instruction.arguments.push_back(std::move(argument));
    }
    if (op.restore >= 0) keep_state_[static_cast<std::size_t>(op.restore)] = true;
    instructions_.push_back(std::move(instruction));
  }
  if (tape_->final_restore >= 0) keep_state_[static_cast<std::size_t>(tape_->final_restore)] = true;
  if (instructions_.size() != lowered_.graph.ops.size()) throw Error("this executor does not run plans that recompute");
}

// First and last step of each slot and block, in plan order.
void Executor::write_lifetimes() {
  constexpr std::size_t kNever = SIZE_MAX;
  std::vector<std::size_t> first_use(tape_->slots.size(), kNever);
  std::vector<std::size_t> last_use(tape_->slots.size(), kNever);
  std::vector<std::size_t> last_touch(tape_->blocks.size(), kNever);
  const auto use = [&](SlotId id, std::size_t step) {
    if (!id.valid()) return;
    if (first_use[id.index()] == kNever) first_use[id.index()] = step;
    last_use[id.index()] = step;
    last_touch[tape_->slots[id.index()].block.index()] = step;
  };
  for (std::size_t s = 0; s < instructions_.size(); ++s) {
    for (const Argument& argument : instructions_[s].arguments) {
      for (const Operand& operand : argument.operands) {
        if (!operand.shell) use(operand.slot, s);
      }
    }
    for (const BlockId block : tape_->op(instructions_[s].op).creates) use(tape_->blocks[block.index()].owner, s);
  }
  for (const SlotId id : tape_->returned) {
    if (!id.valid()) continue;
    const bool is_alias = tape_->slots[id.index()].origin == Slot::Origin::kAlias && !permanent_[id.index()];
    if (is_alias && std::find(end_aliases_.begin(), end_aliases_.end(), id) == end_aliases_.end()) end_aliases_.push_back(id);
    last_use[id.index()] = kNever;  // dropped with everything else at the end
    last_touch[tape_->slots[id.index()].block.index()] = kNever;
  }
  for (std::size_t i = 0; i < tape_->slots.size(); ++i) {
    if (permanent_[i] || first_use[i] == kNever) continue;
    const bool bound = tape_->slots[i].origin == Slot::Origin::kExternal;  // an input
    if (!bound && tape_->slots[i].origin == Slot::Origin::kAlias) instructions_[first_use[i]].aliases.push_back(SlotId(i));
    if (!bound && last_use[i] != kNever) instructions_[last_use[i]].drop_slots.push_back(SlotId(i));
  }
  for (std::size_t i = 0; i < tape_->blocks.size(); ++i) {
    if (!tape_->blocks[i].external && last_touch[i] != kNever) instructions_[last_touch[i]].drop_blocks.push_back(BlockId(i));
  }
}

void Executor::write_script() {
  std::map<std::pair<std::int32_t, BufferId>, std::int64_t> placed;
  for (const Placement& p : plan_.placements) placed[{p.from, p.buffer}] = p.offset;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> scratch;
  for (const ScratchPlacement& p : plan_.scratch) scratch[{p.step, p.index}] = p.offset;
  for (std::size_t s = 0; s < instructions_.size(); ++s) {
    const auto step = static_cast<std::int32_t>(s);
    const TapeOp& op = tape_->op(instructions_[s].op);
    const std::size_t from = allocations_.size();
    for (const std::int64_t bytes : op.allocations) allocations_.push_back({bytes, PlannedAllocation::kUnplanned});
    for (const BlockId block : op.creates) {
      const int position = tape_->blocks[block.index()].allocation;
      if (position < 0) continue;  // no bytes
      allocations_[from + static_cast<std::size_t>(position)].offset = placed.at({step, lowered_.buffer[block.index()]});
    }
    for (std::size_t j = 0; j < op.scratch.size(); ++j) {
      const auto position = static_cast<std::size_t>(op.scratch_allocation[j]);
      allocations_[from + position].offset = scratch.at({step, static_cast<std::int32_t>(j)});
    }
    instructions_[s].script_from = from;
    instructions_[s].script_to = allocations_.size();
  }
}

void Executor::bind_inputs(const std::vector<at::Tensor>& inputs) {
  for (std::size_t i = 0; i < tape_->blocks.size(); ++i) {
    const Block& block = tape_->blocks[i];
    if (!block.external || block.input < 0) continue;
    const at::Tensor& input = inputs.at(static_cast<std::size_t>(block.input));
    storages_[i] = input.storage();
    tensors_[block.owner.index()] = input;
  }
}

}  // namespace stowage::runtime
