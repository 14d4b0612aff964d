// Building an executor: everything about a plan that does not change from step to step.
#include <algorithm>
#include <map>

#include "runtime/memory/allocator.h"
#include "runtime/replay/batch_norm.h"
#include "runtime/replay/executor.h"
#include "runtime/torch/tensors.h"
#include "stowage/error.h"

namespace stowage::runtime {

Executor::Executor(std::shared_ptr<Tape> tape, Lowered lowered, Plan plan, std::shared_ptr<Arena> arena,
                   const std::shared_ptr<Hosts>& host)
    : tape_(std::move(tape)),
      lowered_(std::move(lowered)),
      plan_(std::move(plan)),
      arena_(std::move(arena)),
      script_(*arena_, lowered_.graph.align),
      host_(host->at(tape_->device)) {
  if (plan_.graph_sha256 != lowered_.graph.sha256)
    throw InvalidPlan("the plan is for another graph: its graph_sha256 differs");
  tensors_.resize(tape_->slots.size());
  shells_.resize(tape_->slots.size());
  permanent_.resize(tape_->slots.size(), false);
  storages_.resize(tape_->blocks.size());
  keep_state_.resize(static_cast<std::size_t>(tape_->random_ops) + 1, false);
  states_.resize(keep_state_.size());
  runs_again_.resize(static_cast<std::size_t>(tape_->random_ops), false);
  before_draw_.resize(runs_again_.size());
  slots_of_.resize(tape_->blocks.size());
  swaps_ = schedule_swaps(lowered_.graph, plan_);
  if (!swaps_.swaps.empty()) host->require(tape_->device);
  residents_.resize(tape_->blocks.size());
  away_.resize(tape_->blocks.size(), false);
  for (const BufferId buffer : plan_.away) away_[lowered_.block[buffer.index()].index()] = true;
  if (!plan_.away.empty() && !host_.homes) throw Error("residents can wait on the host on the CPU alone");
  tickets_.resize(swaps_.swaps.size());
  rescued_.resize(lowered_.graph.buffers.size());
  find_results();
  bind_residents();
  write_instructions();
  write_lifetimes();
  write_script();
  write_undo();
}

void Executor::bind_residents() {
  touched_ = touched_blocks(*tape_);
  written_.resize(tape_->blocks.size(), false);
  std::vector<bool> counted_by_python(tape_->blocks.size(), true);
  for (const TapeOp& op : tape_->ops) {
    if (op.role != TapeOp::Role::kKernel) continue;
    for_each_access(*tape_, op, [&](BlockId block, Access access) {
      if (access != Access::kWrite) return;
      written_[block.index()] = true;
      if (op.section < 0) counted_by_python[block.index()] = false;
    });
  }
  for (std::size_t i = 0; i < tape_->blocks.size(); ++i) {
    const Block& block = tape_->blocks[i];
    if (!block.external) continue;
    if (written_[i]) mutated_.push_back(BlockId(i));
    if (written_[i] && !counted_by_python[i]) counts_.push_back(BlockId(i));
    if (block.input >= 0) {
      input_blocks_.emplace_back(BlockId(i), 1);
      continue;
    }
    if (!block.tensor.defined()) continue;
    residents_[i] = block.tensor.storage();
    if (!away_[i]) storages_[i] = residents_[i];
    c10::StorageImpl* storage = residents_[i].unsafeGetStorageImpl();
    if (touched_[i]) resident_storages_.insert(storage);
    const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    foreign_residents_ |= touched_[i] && data && block_origin(data.get(), data.get_deleter()) == BlockOrigin::kForeign;
  }
  for (auto& [block, alignment] : input_blocks_) {
    for (const Slot& slot : tape_->slots) {
      if (slot.block == block) alignment = std::max(alignment, static_cast<std::int64_t>(slot.meta.dtype.itemsize()));
    }
  }
  for (std::size_t i = 0; i < tape_->slots.size(); ++i) {
    const Slot& slot = tape_->slots[i];
    const Block& block = tape_->blocks[slot.block.index()];
    if (!block.external || block.input >= 0 || !block.tensor.defined() || away(slot.block)) continue;
    permanent_[i] = true;
    tensors_[i] = slot.origin == Slot::Origin::kExternal ? block.tensor : make_alias(block.tensor.storage(), slot.meta);
  }
}

void Executor::write_instructions() {
  std::vector<bool> ran(lowered_.graph.ops.size(), false);
  std::size_t next_swap = 0;
  for (const Step& step : plan_.steps) {
    Instruction instruction;
    if (step.kind == Step::Kind::kRun) {
      instruction.again = ran[step.op.index()];
      ran[step.op.index()] = true;
      instruction.chain = lowered_.chain[step.op.index()];
      instruction.product = lowered_.product[step.op.index()];
      instruction.tile = lowered_.tile[step.op.index()];
      write_op(step.op, instruction);
    } else {
      instruction.swap = next_swap++;
    }
    instructions_.push_back(std::move(instruction));
  }
  for (std::size_t i = 0; i < swaps_.swaps.size(); ++i) {
    instructions_[static_cast<std::size_t>(swaps_.swaps[i].until) - 1].finish.push_back(i);
  }
  ran_at_.assign(tape_->ops.size(), instructions_.size());
  for (std::size_t i = instructions_.size(); i-- > 0;) {
    if (instructions_[i].op.valid()) ran_at_[instructions_[i].op.index()] = i;
    if (instructions_[i].tile >= 0) {
      for (const TileMember& member : lowered_.tiles[static_cast<std::size_t>(instructions_[i].tile)].members)
        ran_at_[member.op.index()] = i;
    }
    if (instructions_[i].chain < 0) continue;
    for (const RowMember& member : lowered_.chains[static_cast<std::size_t>(instructions_[i].chain)].members)
      ran_at_[member.op.index()] = i;
  }
  keep_states(tape_->final_jump);
}

void Executor::keep_states(const GeneratorJump& jump) {
  for (const auto& [part, to] : jump.to)
    if (to.draws >= 0) keep_state_[static_cast<std::size_t>(to.draws)] = true;
}

void Executor::write_op(OpId id, Instruction& instruction) {
  instruction.op = lowered_.tape_op[id.index()];
  if (instruction.chain >= 0 || instruction.tile >= 0) return;
  const TapeOp& op = tape_->op(instruction.op);
  instruction.tells = !op.results.empty() && tells_value(op.handle);
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    if (op.tensors[i].kind == TensorRef::Kind::kNone) continue;
    if (instruction.again && updates_on_the_side(op, i)) continue;  // stays None: the first run has updated them
    const bool shell = access_of(op, i) == Access::kNone;
    Argument argument{i, op.tensors[i].kind, {}};
    for (const SlotId slot_id : op.tensors[i].slots) {
      argument.operands.push_back({slot_id, shell});
      if (!shell || !slot_id.valid() || shells_[slot_id.index()].defined()) continue;
      const Slot& slot = tape_->slots[slot_id.index()];
      const Block& block = tape_->blocks[slot.block.index()];
      shells_[slot_id.index()] = make_shell(slot.meta, block.bytes, block.device);
    }
    instruction.arguments.push_back(std::move(argument));
  }
  keep_states(op.jump);
  if (op.random_order >= 0 && instruction.again) runs_again_[static_cast<std::size_t>(op.random_order)] = true;
}

// Tensors live as long as the placement that holds their data.
void Executor::write_lifetimes() {
  for (std::size_t i = 0; i < tape_->slots.size(); ++i) {
    if (!permanent_[i]) slots_of_[tape_->slots[i].block.index()].push_back(SlotId(i));
  }
  for (const Placement& p : plan_.placements) {
    if (p.to == static_cast<std::int32_t>(plan_.steps.size())) continue;  // dropped with everything else
    instructions_[static_cast<std::size_t>(p.to) - 1].drop_blocks.push_back(lowered_.block[p.buffer.index()]);
  }
}

void Executor::write_script() {
  // By buffer and first step; by buffer and last step
  std::map<std::pair<BufferId, std::int32_t>, std::int64_t> placed, ended;
  for (const Placement& p : plan_.placements) {
    placed[{p.buffer, p.from}] = p.offset;
    ended[{p.buffer, p.to - 1}] = p.offset;
  }
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> scratch;
  for (const ScratchPlacement& p : plan_.scratch) scratch[{p.step, p.index}] = p.offset;
  for (std::size_t s = 0; s < instructions_.size(); ++s) {
    const auto step = static_cast<std::int32_t>(s);
    Instruction& instruction = instructions_[s];
    const std::size_t from = allocations_.size();
    instruction.script_from = from;
    if (!instruction.op.valid()) {
      const Swap& swap = swaps_.swaps[instruction.swap];
      if (swap.direction == Copy::Direction::kIn) {
        allocations_.push_back({lowered_.graph.buffer(swap.buffer).bytes, placed.at({swap.buffer, step})});
      }
      instruction.script_to = allocations_.size();
      continue;
    }
    const TapeOp& op = tape_->op(instruction.op);
    const RowChain* const chain =
        instruction.chain < 0 ? nullptr : &lowered_.chains[static_cast<std::size_t>(instruction.chain)];
    const Tiles* const tiles =
        instruction.tile < 0 ? nullptr : &lowered_.tiles[static_cast<std::size_t>(instruction.tile)];
    if (tiles != nullptr) {
      write_tiles_script(*tiles, step, scratch);
    } else if (chain != nullptr) {
      write_chain_script(*chain, step, scratch);
    } else {
      for (const std::int64_t bytes : op.allocations) allocations_.push_back({bytes, PlannedAllocation::kUnplanned});
    }
    const std::vector<BlockId> creates = tiles == nullptr ? op.creates : tiles->made();
    for (std::size_t c = 0; c < creates.size(); ++c) {
      const BlockId block = creates[c];
      if (lowered_.in_result[block.index()]) {
        allocations_[from + static_cast<std::size_t>(tape_->blocks[block.index()].allocation)].result =
            position_among_results(block);
        continue;
      }
      const BufferId buffer = lowered_.buffer[block.index()];
      // It may have begun earlier, when the op runs again
      const auto covering = std::prev(placed.upper_bound({buffer, step}));
      if (covering->first.second != step) instruction.renew.push_back(block);
      const int position = tiles != nullptr   ? static_cast<int>(c)
                           : chain != nullptr ? 0
                                              : tape_->blocks[block.index()].allocation;
      if (position < 0) continue;  // no bytes
      PlannedAllocation& allocation = allocations_[from + static_cast<std::size_t>(position)];
      allocation.offset = covering->second;
      instruction.placed.emplace_back(block, allocation.offset);
      if (covering->first.second != step) continue;
      for (const ReusePair& pair : lowered_.graph.op(plan_.steps[s].op).takeover) {
        const auto input = pair.created == buffer ? ended.find({pair.read, step}) : ended.end();
        allocation.takes_over |= input != ended.end() && input->second == allocation.offset;
      }
    }
    if (instruction.product >= 0 && !write_product_script(step, from, scratch)) instruction.product = -1;
    for (std::size_t j = 0; chain == nullptr && tiles == nullptr && j < op.scratch.size(); ++j) {
      const auto position = static_cast<std::size_t>(op.scratch_allocation[j]);
      allocations_[from + position].offset = scratch.at({step, static_cast<std::int32_t>(j)});
    }
    instruction.script_to = allocations_.size();
  }
}

void Executor::bind_inputs(const std::vector<at::Tensor>& inputs) {
  for (const auto& [id, alignment] : input_blocks_) {
    const Block& block = tape_->blocks[id.index()];
    if (!inputs.at(static_cast<std::size_t>(block.input)).defined()) continue;  // nothing looks at it
    storages_[id.index()] = storage_of(block, inputs);
    tensors_[block.owner.index()] = make_alias(storages_[id.index()], tape_->slots[block.owner.index()].meta);
  }
}

// The part of an argument's storage that the step knows. It begins with that argument.
c10::Storage Executor::storage_of(const Block& block, const std::vector<at::Tensor>& inputs) const {
  const at::Tensor& input = inputs.at(static_cast<std::size_t>(block.input));
  return part_of(input.storage(), span_bytes(input).first, block.bytes);
}

}  // namespace stowage::runtime
