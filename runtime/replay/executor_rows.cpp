// Running a chain of rows (row_slices.h): some rows after the other, through all its kernels, on several threads.
//
//   thread 0   rows 0 .. 4   rows 8 .. 12   ...      one parallel region for all, as a barrier for each kernel of each slice
//   thread 1   rows 4 .. 8   rows 12 .. 16  ...      would cost more than the kernels; each thread has a script of its own
//
//   script     result | slices of worker 0: member 0, member 1, member 0, member 1, ... | of worker 1 ...
//   at         placed | its scratch, the same places for each slice                     | its scratch
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "runtime/replay/executor.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

namespace {

// run(i, i + 1) for each i < count, on PyTorch's threads, in whose parallel region its kernels do without one of their
// own. at::parallel_for is a template, and would run here alone: this library is built without OpenMP, so that there
// is one OpenMP in the process. A loop over a tensor of `count` numbers leads to PyTorch's.
void on_threads(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& run) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  at::Tensor tensor = at::from_blob(numbers.data(), {count}, at::kLong);
  at::TensorIterator loop = at::TensorIterator::nullary_op(tensor);
  const auto each = [&](char** data, const std::int64_t* strides, std::int64_t size, std::int64_t outer) {
    for (std::int64_t i = 0; i < outer; ++i) {
      for (std::int64_t j = 0; j < size; ++j) {
        const std::int64_t n = *reinterpret_cast<const std::int64_t*>(data[0] + i * strides[1] + j * strides[0]);
        run(n, n + 1);
      }
    }
  };
  loop.for_each(at::TensorIteratorBase::loop2d_t(each), /*grain_size=*/1);
}

// embedding_dense_backward of `count` rows from `row` on: what belongs to no such row is skipped as padding is. Returns
// the indices, of which the stack has a tensor.
std::vector<std::int64_t> shift_indices(torch::jit::Stack& stack, std::int64_t row, std::int64_t count) {
  const at::Tensor& indices = stack[1].toTensor();
  const std::int64_t padding = stack[3].toInt();
  std::vector<std::int64_t> shifted(static_cast<std::size_t>(indices.numel()));
  const auto* index = indices.const_data_ptr<std::int64_t>();
  for (std::int64_t& to : shifted) {
    const bool among = *index != padding && *index >= row && *index < row + count;
    to = among ? *index - row : -1;
    ++index;
  }
  stack[1] = at::from_blob(shifted.data(), indices.sizes(), at::kLong);
  stack[2] = count;
  stack[3] = std::int64_t{-1};
  return shifted;
}

}  // namespace

// The scratch of a member, worker by worker, then that of the next one, as lower() lists it.
void Executor::write_chain_script(const RowChain& chain, std::int32_t step,
                                  const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch) {
  allocations_.push_back({chain.rows * chain.members.back().row_bytes, PlannedAllocation::kUnplanned});
  for (std::int64_t worker = 0; worker < chain.workers; ++worker) {
    for (std::int64_t row = worker * chain.slice_rows; row < chain.rows; row += chain.workers * chain.slice_rows) {
      const std::int64_t count = std::min(chain.slice_rows, chain.rows - row);
      std::int64_t before = 0;
      for (const RowMember& member : chain.members) {
        const auto each = static_cast<std::int64_t>(member.allocations.size());
        for (std::int64_t i = 0; i < each; ++i) {
          const auto index = static_cast<std::int32_t>(before + worker * each + i);
          allocations_.push_back(
              {chain.allocation_bytes(member, static_cast<std::size_t>(i), count), scratch.at({step, index})});
        }
        before += chain.workers * each;
      }
    }
  }
}

// Allocations of a worker, from its script's first on.
std::vector<std::size_t> Executor::chain_scripts(const RowChain& chain) {
  std::size_t each = 0;
  for (const RowMember& member : chain.members) each += member.allocations.size();
  std::vector<std::size_t> from{1};
  for (std::int64_t worker = 0; worker < chain.workers; ++worker) {
    const std::int64_t first = worker * chain.slice_rows, stride = chain.workers * chain.slice_rows;
    const std::int64_t slices = first < chain.rows ? (chain.rows - first + stride - 1) / stride : 0;
    from.push_back(from.back() + each * static_cast<std::size_t>(slices));
  }
  return from;
}

void Executor::call_chain(const Instruction& instruction, torch::jit::Stack& stack) {
  const RowChain& chain = lowered_.chains[static_cast<std::size_t>(instruction.chain)];
  const Block& block = tape_->blocks[tape_->op(chain.last()).creates[0].index()];
  c10::Allocator* const allocator = c10::GetAllocator(block.device.type());
  const auto bytes = static_cast<std::size_t>(block.bytes);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                             /*resizable=*/true);
  script_.end_op();  // this thread's; what else is planned is the workers'
  std::vector<std::vector<at::Tensor>> whole(chain.members.size());  // operands that all rows share
  for (std::size_t m = 0; m < chain.members.size(); ++m) {
    for (const RowOperand& operand : chain.members[m].operands)
      whole[m].push_back(operand.by_row ? at::Tensor() : tensor({operand.slot, false}));
  }
  const std::vector<std::size_t> from = chain_scripts(chain);
  rows_written_ = true;
  std::vector<std::int64_t> peaks(static_cast<std::size_t>(chain.workers), 0);
  std::atomic<std::int64_t> missed{0}, skipped{0};
  on_threads(chain.workers, [&](std::int64_t begin, std::int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const c10::AutoGradMode no_gradients(false);
    for (std::int64_t worker = begin; worker < end; ++worker) {
      const auto w = static_cast<std::size_t>(worker);
      AllocationScript script(*arena_, lowered_.graph.align);
      const ArmScript armed(script);
      script.begin_op(allocations_.data() + instruction.script_from + from[w], from[w + 1] - from[w]);
      run_worker(chain, worker, whole, static_cast<char*>(storage.mutable_data()));
      script.end_op();
      peaks[w] = script.peak_bytes();
      missed += script.misses();
      skipped += script.skipped();
    }
  });
  std::int64_t beside = 0;
  for (const std::int64_t peak : peaks) beside += peak;
  script_.count_beside(beside, missed, skipped);
  chain_surprised_ |= missed > 0 || skipped > 0;
  if (chain.wrong && bytes > 0) static_cast<char*>(storage.mutable_data())[bytes / 2] ^= 1;
  stack.clear();
  stack.emplace_back(make_alias(storage, tape_->slots[block.owner.index()].meta));
}

void Executor::run_worker(const RowChain& chain, std::int64_t worker, const std::vector<std::vector<at::Tensor>>& whole,
                          char* to) const {
  const TapeOp& last = tape_->op(chain.last());
  const std::int64_t row_bytes = chain.members.back().row_bytes;
  const caffe2::TypeMeta dtype = tape_->slots[tape_->blocks[last.creates[0].index()].owner.index()].meta.dtype;
  torch::jit::Stack stack;
  std::vector<at::Tensor> made(chain.members.size());
  for (std::int64_t row = worker * chain.slice_rows; row < chain.rows; row += chain.workers * chain.slice_rows) {
    const std::int64_t count = std::min(chain.slice_rows, chain.rows - row);
    for (std::size_t m = 0; m < chain.members.size(); ++m) call_member(chain, m, row, count, whole[m], made, stack);
    const at::Tensor& slice = made.back();
    if (!slice.is_contiguous() || slice.dtype() != dtype ||
        static_cast<std::int64_t>(slice.nbytes()) != count * row_bytes)
      throw std::runtime_error(name_with_line(*tape_, last) + " gives another form for a part of its rows");
    std::memcpy(to + row * row_bytes, slice.const_data_ptr(), slice.nbytes());
    made.back().reset();
  }
}

void Executor::call_member(const RowChain& chain, std::size_t index, std::int64_t row, std::int64_t count,
                           const std::vector<at::Tensor>& whole, std::vector<at::Tensor>& made,
                           torch::jit::Stack& stack) const {
  const RowMember& member = chain.members[index];
  const TapeOp& op = tape_->op(member.op);
  stack.assign(op.arguments.begin(), op.arguments.end());
  if (member.dim_argument >= 0) stack[static_cast<std::size_t>(member.dim_argument)] = std::int64_t{-1};
  if (member.alpha_argument >= 0 &&
      !stack[static_cast<std::size_t>(member.alpha_argument)].toScalar().equal(std::int64_t{1}))
    throw std::runtime_error(name_with_line(*tape_, op) + " has another factor than when it was recorded");
  for (std::size_t i = 0; i < member.operands.size(); ++i) {
    const RowOperand& operand = member.operands[i];
    c10::IValue& value = stack[operand.position];
    if (operand.made_by >= 0) {
      value = made[static_cast<std::size_t>(operand.made_by)];
    } else if (!operand.by_row) {
      value = whole[i];
    } else {
      TensorMeta slice = operand.rows;
      slice.sizes[0] = count;
      const Slot& slot = tape_->slots[operand.slot.index()];
      slice.storage_offset = slot.meta.storage_offset + row * slice.strides[0];
      value = make_alias(storages_[slot.block.index()], slice);
    }
  }
  const std::vector<std::int64_t> shifted =
      member.of_indices ? shift_indices(stack, row, count) : std::vector<std::int64_t>();
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
  for (const Instruction& instruction : instructions_)
    if (instruction.product >= 0 && !instruction.again) ops.push_back(instruction.op);
  return ops;
}

void Executor::note_times() {
  if (!stopwatch_) return;
  const std::vector<std::int64_t> times = stopwatch_->times_ns();
  for (std::size_t i = 0; i < times.size(); ++i) note_time(instructions_[timed_[i]], times[i]);
}

// Of a chain, or of tiles, each member has its share by what it was thought to cost.
void Executor::note_time(const Instruction& instruction, std::int64_t ns) {
  std::vector<TapeOpId> members;
  if (instruction.tile >= 0)
    for (const TileMember& member : lowered_.tiles[static_cast<std::size_t>(instruction.tile)].members)
      members.push_back(member.op);
  else if (instruction.chain >= 0)
    for (const RowMember& member : lowered_.chains[static_cast<std::size_t>(instruction.chain)].members)
      members.push_back(member.op);
  else
    members.push_back(instruction.op);
  std::int64_t all = 0;
  for (const TapeOpId member : members) all += tape_->op(member).cost_ns;
  for (const TapeOpId member : members) {
    const double share = all > 0 ? static_cast<double>(tape_->op(member).cost_ns) / static_cast<double>(all)
                                 : 1.0 / static_cast<double>(members.size());
    op_times_.emplace_back(member, static_cast<std::int64_t>(share * static_cast<double>(ns)));
  }
}

}  // namespace stowage::runtime
