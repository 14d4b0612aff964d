// Running a chain of rows (row_slices.h): some rows after the other, through all its kernels.
//
//   script   result | member 0, member 1 (first slice) | member 0, member 1 (second slice) | ...
//   at       placed | scratch 0, scratch 1             | the same places again             |
#include <cstring>
#include <stdexcept>

#include "runtime/replay/executor.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

void Executor::write_chain_script(const RowChain& chain, std::int32_t step,
                                  const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch) {
  allocations_.push_back({chain.rows * chain.members.back().row_bytes, PlannedAllocation::kUnplanned});
  for (std::int64_t row = 0; row < chain.rows; row += chain.slice_rows) {
    const std::int64_t count = std::min(chain.slice_rows, chain.rows - row);
    std::int32_t next = 0;
    for (const RowMember& member : chain.members) {
      for (std::size_t i = 0; i < member.allocations.size(); ++i) {
        allocations_.push_back({chain.allocation_bytes(member, i, count), scratch.at({step, next++})});
      }
    }
  }
}

void Executor::call_chain(const RowChain& chain, torch::jit::Stack& stack) {
  const BlockId result = tape_->op(chain.last()).creates[0];
  const Block& block = tape_->blocks[result.index()];
  c10::Allocator* const allocator = c10::GetAllocator(block.device.type());
  const auto bytes = static_cast<std::size_t>(block.bytes);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                             /*resizable=*/true);
  const std::int64_t row_bytes = chain.members.back().row_bytes;
  const TensorMeta& meta = tape_->slots[block.owner.index()].meta;
  auto* const to = static_cast<char*>(storage.mutable_data());
  std::vector<at::Tensor> made(chain.members.size());
  for (std::int64_t row = 0; row < chain.rows; row += chain.slice_rows) {
    const std::int64_t count = std::min(chain.slice_rows, chain.rows - row);
    for (std::size_t m = 0; m < chain.members.size(); ++m) call_member(chain, m, row, count, made, stack);
    const at::Tensor& slice = made.back();
    if (!slice.is_contiguous() || slice.dtype() != meta.dtype ||
        static_cast<std::int64_t>(slice.nbytes()) != count * row_bytes)
      throw std::runtime_error(name_with_line(*tape_, tape_->op(chain.last())) +
                               " gives another form for a part of its rows");
    rows_written_ = true;
    std::memcpy(to + row * row_bytes, slice.const_data_ptr(), slice.nbytes());
    made.back().reset();
  }
  if (chain.wrong && bytes > 0) to[bytes / 2] ^= 1;
  stack.clear();
  stack.emplace_back(make_alias(storage, meta));
}

void Executor::call_member(const RowChain& chain, std::size_t index, std::int64_t row, std::int64_t count,
                           std::vector<at::Tensor>& made, torch::jit::Stack& stack) {
  const RowMember& member = chain.members[index];
  const TapeOp& op = tape_->op(member.op);
  stack.assign(op.arguments.begin(), op.arguments.end());
  if (member.dim_argument >= 0) stack[static_cast<std::size_t>(member.dim_argument)] = std::int64_t{-1};
  if (member.alpha_argument >= 0 &&
      !stack[static_cast<std::size_t>(member.alpha_argument)].toScalar().equal(std::int64_t{1}))
    throw std::runtime_error(name_with_line(*tape_, op) +
                             " has another factor than when it was recorded: compile with lean_kernels=False");
  for (const RowOperand& operand : member.operands) {
    c10::IValue& value = stack[operand.position];
    if (operand.made_by >= 0) {
      value = made[static_cast<std::size_t>(operand.made_by)];
    } else if (!operand.by_row) {
      value = tensor({operand.slot, false});
    } else {
      TensorMeta slice = operand.rows;
      slice.sizes[0] = count;
      slice.storage_offset += row * slice.strides[0];
      value = make_alias(storages_[tape_->slots[operand.slot.index()].block.index()], slice);
    }
  }
  op.handle.callBoxed(&stack);
  made[index] = stack[0].toTensor();
  stack.clear();
  for (std::size_t m = 0; m < index; ++m) {
    if (chain.members[m].last_use == static_cast<int>(index)) made[m].reset();
  }
}

std::vector<TapeOpId> Executor::replaced() const {
  std::vector<TapeOpId> ops;
  for (const RowChain& chain : lowered_.chains) ops.push_back(chain.last());
  return ops;
}

// Of a chain, each member has its share by what it was thought to cost.
void Executor::note_time(const Instruction& instruction, std::int64_t ns) {
  if (instruction.chain < 0) {
    op_times_.emplace_back(instruction.op, ns);
    return;
  }
  const std::vector<RowMember>& members = lowered_.chains[static_cast<std::size_t>(instruction.chain)].members;
  std::int64_t all = 0;
  for (const RowMember& member : members) all += tape_->op(member.op).cost_ns;
  for (const RowMember& member : members) {
    const double share = all > 0 ? static_cast<double>(tape_->op(member.op).cost_ns) / static_cast<double>(all)
                                 : 1.0 / static_cast<double>(members.size());
    op_times_.emplace_back(member.op, static_cast<std::int64_t>(share * static_cast<double>(ns)));
  }
}

}  // namespace stowage::runtime
