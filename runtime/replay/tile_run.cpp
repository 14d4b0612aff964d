#include "runtime/replay/tile_run.h"

#include <ATen/Functions.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kMean = 1, kSum = 2;  // at::Reduction
constexpr std::int64_t kCompared = 1 << 20;  // elements at a time

bool is_mean(const TapeOp& op) { return op.arguments[3].toInt() == kMean; }

// What roundings of sums over rows in another order stay below, as a part of the largest number of a result.
double most(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return 1e-9;
    case at::kFloat: return 1e-3;
    case at::kHalf: return 1.0 / 32;
    default: return 1.0 / 8;
  }
}

}  // namespace

void TileRun::run(const std::vector<c10::Storage>& outputs) {
  const c10::AutoGradMode no_gradients(false);
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs_.push_back(make_alias(outputs[i], tiles_.outputs[i].rows));
  for (std::int64_t row = 0; row < tiles_.rows; row += tiles_.tile_rows) {
    const std::int64_t count = std::min(tiles_.tile_rows, tiles_.rows - row);
    for (const TileMember& member : tiles_.members) {
      push(member, row, count);
      if (member.kind == TileKind::kProduct) {
        add_product(member, row, count);
      } else {
        tape_.op(member.op).handle.callBoxed(&stack_);
        take_results(member, row, count);
      }
      stack_.clear();
      for (const BlockId block : member.dead) made_.erase(block);
    }
  }
  for (const TileMember& member : tiles_.members) write_sums(member);
  if (!tiles_.wrong || outputs_.empty()) return;
  const at::Tensor& first = outputs_[0];
  static_cast<char*>(first.mutable_data_ptr())[first.element_size() - 1] ^= 0x40;
}

at::Tensor* TileRun::output(BlockId block) {
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (tiles_.outputs[i].block == block) return &outputs_[i];
  return nullptr;
}

void TileRun::push(const TileMember& member, std::int64_t row, std::int64_t count) {
  const TapeOp& op = tape_.op(member.op);
  stack_.assign(op.arguments.begin(), op.arguments.end());
  for (const TileOperand& each : member.operands) stack_[each.position] = operand(each, row, count);
  if (member.dim_argument >= 0) {
    c10::IValue& dim = stack_[static_cast<std::size_t>(member.dim_argument)];
    dim = dim.isInt() ? c10::IValue(member.dim) : c10::IValue(c10::List<std::int64_t>({member.dim}));
  }
  if (member.kind == TileKind::kNll) stack_[3] = kSum;
  if (memory_.pool != nullptr && member.over >= 0) {
    const TileOperand& over = member.operands[static_cast<std::size_t>(member.over)];
    memory_.pool->lie_over(made_.at(tape_.slots[over.slot.index()].block).const_data_ptr());
  }
}

at::Tensor TileRun::operand(const TileOperand& operand, std::int64_t row, std::int64_t count) {
  const Slot& slot = tape_.slots[operand.slot.index()];
  TensorMeta meta = operand.rows;
  if (!operand.by_row) {
    if (meta == slot.meta) return memory_.whole(operand.slot);
    meta.storage_offset = slot.meta.storage_offset;  // it may have moved
    return make_alias(memory_.storage(slot.block), meta);
  }
  meta.sizes[0] = count;
  if (!operand.inside) {
    meta.storage_offset = slot.meta.storage_offset + row * meta.strides[0];
    const at::Tensor rows = make_alias(memory_.storage(slot.block), meta);
    return operand.transposed ? rows.t() : rows;
  }
  const at::Tensor& made = made_.at(slot.block);
  const at::Tensor rows = made.as_strided(meta.sizes, meta.strides, made.storage_offset() + slot.meta.storage_offset);
  return operand.transposed ? rows.t() : rows;
}

void TileRun::take_results(const TileMember& member, std::int64_t row, std::int64_t count) {
  switch (member.kind) {
    case TileKind::kInPlace:
    case TileKind::kProduct: return;
    case TileKind::kRows: return take_rows(member, row, count);
    case TileKind::kColumns: {
      const at::Tensor sum = stack_[0].toTensor().view({-1});
      at::Tensor* const all = output(member.results[0]);
      if (all == nullptr) return;
      at::Tensor flat = all->view({-1});
      row == 0 ? flat.copy_(sum) : flat.add_(sum);
      return;
    }
    case TileKind::kNllRows: take_rows(member, row, count); [[fallthrough]];
    case TileKind::kAll:
    case TileKind::kNll:
      for (std::size_t r = member.kind == TileKind::kNllRows ? 1 : 0; r < member.results.size(); ++r)
        sums_[member.results[r]] += stack_[r].toTensor().item().toDouble();
  }
}

void TileRun::take_rows(const TileMember& member, std::int64_t row, std::int64_t count) {
  const at::Tensor& tile = stack_[0].toTensor();
  const BlockId block = member.results[0];
  const TapeOp& op = tape_.op(member.op);
  const Block& whole = tape_.blocks[block.index()];
  const std::int64_t each = whole.bytes / tiles_.rows;
  if (!tile.is_contiguous() || static_cast<std::int64_t>(tile.nbytes()) != each * count)
    throw std::runtime_error(name_with_line(tape_, op) + " gives another form for a part of its rows");
  made_[block] = tile;
  at::Tensor* const all = output(block);
  if (all == nullptr) return;
  std::vector<std::int64_t> sizes = all->sizes().vec();  // by an operator: an eager budget may have let go of it
  sizes[0] = count;
  all->as_strided(sizes, all->strides(), row * all->stride(0)).copy_(tile.view(sizes));
}

// Into what is there, without a product of its own.
void TileRun::add_product(const TileMember& member, std::int64_t row, std::int64_t /*count*/) {
  at::Tensor* const all = output(member.results[0]);
  if (all == nullptr) return;
  const at::Tensor& left = stack_[0].toTensor();
  const at::Tensor& right = stack_[1].toTensor();
  row == 0 ? at::mm_out(*all, left, right) : at::addmm_out(*all, *all, left, right);
}

void TileRun::write_sums(const TileMember& member) {
  if (member.kind == TileKind::kNllRows) {
    if (at::Tensor* const none = output(member.results[1])) none->fill_(sums_[member.results[1]]);
    return;
  }
  if (member.kind != TileKind::kAll && member.kind != TileKind::kNll) return;
  double sum = sums_[member.results[0]];
  if (member.kind == TileKind::kNll) {
    const double weight = sums_[member.results[1]];
    if (is_mean(tape_.op(member.op))) sum /= weight;
    if (at::Tensor* const total = output(member.results[1])) total->fill_(weight);
  }
  if (at::Tensor* const all = output(member.results[0])) all->fill_(sum);
}

std::int64_t tile_pool_bytes(const Tape& tape, const Tiles& tiles) {
  static char base;
  Pool pool(&base, std::numeric_limits<std::int64_t>::max() / 4);
  std::map<BlockId, void*> made;
  for (const TileMember& member : tiles.members) {
    if (member.over >= 0) {
      const SlotId over = member.operands[static_cast<std::size_t>(member.over)].slot;
      pool.lie_over(made.at(tape.slots[over.index()].block));
    }
    if (member.kind != TileKind::kProduct) {
      for (std::size_t r = 0; r < member.results.size(); ++r) {
        const BlockId block = member.results[r];
        const bool rows = member.kind_of(r) == TileKind::kRows;
        const std::int64_t bytes = tape.blocks[block.index()].bytes;
        made[block] = pool.take(static_cast<std::size_t>(rows ? bytes / tiles.rows * tiles.tile_rows : bytes));
      }
    }
    const auto give_back = [&](BlockId block) {
      if (const auto it = made.find(block); it != made.end()) pool.give_back(it->second), made.erase(it);
    };
    for (std::size_t r = 0; r < member.results.size(); ++r)
      if (member.kind_of(r) != TileKind::kRows) give_back(member.results[r]);
    std::for_each(member.dead.begin(), member.dead.end(), give_back);
  }
  return pool.wanted();
}

bool compare_tiles(const Tape& tape, const TileOutput& output, const c10::Storage& tiled, const c10::Storage& recorded,
                   TileError& error) {
  const Block& block = tape.blocks[output.block.index()];
  TensorMeta flat = output.rows;
  if (!at::isFloatingType(flat.dtype.toScalarType())) return true;
  flat.storage_offset = 0;
  std::int64_t all = 1;
  for (const std::int64_t size : output.rows.sizes) all *= size;
  flat.strides = {1};
  double difference = 0, largest = 0;
  for (std::int64_t from = 0; from < all; from += kCompared) {
    flat.sizes = {std::min(kCompared, all - from)};
    flat.storage_offset = from;
    const at::Tensor a = make_alias(tiled, flat).to(at::kDouble), b = make_alias(recorded, flat).to(at::kDouble);
    const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
    const at::Tensor apart = a.sub(b).abs().masked_fill_(same, 0);
    const double most_apart =
        apart.isnan().any().item().toBool() ? std::numeric_limits<double>::infinity() : apart.max().item().toDouble();
    difference = std::max(difference, most_apart);
    largest = std::max(largest, b.abs().nan_to_num_(0, 0, 0).max().item().toDouble());
  }
  const double relative = difference == 0 ? 0 : difference / std::max(largest, std::numeric_limits<double>::min());
  error.absolute = std::max(error.absolute, difference);
  const bool small = relative <= most(flat.dtype.toScalarType());
  if (relative > error.relative || (!small && !error.too_large)) {
    error.relative = relative;
    error.where = name_with_line(tape, tape.op(block.creator));
  }
  error.too_large = error.too_large || !small;
  return small;
}

}  // namespace stowage::runtime
