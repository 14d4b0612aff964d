#include "runtime/replay/row_slices.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/replay/kernel_table.h"
#include "runtime/torch/kernel_threads.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kSmall = 64;       // bytes of an allocation that does not grow with the rows
constexpr std::int64_t kFewSlices = 8;    // one after the other at least, where there are as many rows
constexpr std::int64_t kIndexShare = 64;  // indices: at most such a part of the elements of a table's gradient
constexpr std::int64_t kExtraShare = 16;  // small operands that live longer: at most such a part of what is saved

std::int64_t elements(const TensorMeta& meta) {
  std::int64_t count = 1;
  for (const std::int64_t size : meta.sizes) count *= size;
  return count;
}

bool is_plain(const TensorMeta& meta) { return !meta.conjugated && !meta.negated; }

// [.., V], dense: as rows of V.
TensorMeta as_rows(const TensorMeta& meta) {
  TensorMeta rows = meta;
  const std::int64_t width = meta.sizes.back();
  rows.sizes = {elements(meta) / width, width};
  rows.strides = {width, 1};
  return rows;
}

// One op of the tape as a member of a chain: what its rows are, and how it looks at each operand.
class MemberOf {
 public:
  MemberOf(const Tape& tape, TapeOpId id) : tape_(tape), op_(tape.op(id)) { member_.op = id; }

  std::optional<RowMember> make() {
    kind_ = facts_of(op_.handle).in_slices;
    if (kind_ == InSlices::kNo || !makes_rows() || !take_allocations() || !take_numbers()) return {};
    for (std::size_t i = 0; i < op_.tensors.size(); ++i) {
      const TensorRef& ref = op_.tensors[i];
      if (ref.kind == TensorRef::Kind::kNone) continue;
      if (ref.kind != TensorRef::Kind::kTensor || access_of(op_, i) != Access::kRead) return {};
      if (!ref.slots[0].valid()) continue;
      if (!take_operand(i, ref.slots[0])) return {};
    }
    return member_;
  }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  // One result, that lies over its whole block, densely, row after row.
  bool makes_rows() {
    if (op_.role != TapeOp::Role::kKernel || op_.random_order >= 0 || op_.jump.moves()) return false;
    if (op_.settings != 0) return false;
    if (op_.creates.size() != 1 || op_.results.size() != 1) return false;
    const Block& block = tape_.blocks[op_.creates[0].index()];
    const Slot& slot = tape_.slots[block.owner.index()];
    if (block.device != tape_.device || op_.results[0].kind != TensorRef::Kind::kTensor) return false;
    if (op_.results[0].slots[0] != block.owner || slot.meta.sizes.size() < 2 || slot.meta.storage_offset != 0)
      return false;
    result_ = &slot.meta;
    width_ = slot.meta.sizes.back();
    rows_ = width_ == 0 ? 0 : elements(slot.meta) / width_;
    member_.row_bytes = width_ * static_cast<std::int64_t>(slot.meta.dtype.itemsize());
    return rows_ >= 2 && slot.meta.is_contiguous() && is_plain(slot.meta) && block.bytes == rows_ * member_.row_bytes;
  }

  // The result, and small ones that do not grow with the rows; of a fake nothing is known but the result.
  bool take_allocations() {
    const Block& block = tape_.blocks[op_.creates[0].index()];
    if (op_.allocations.empty()) member_.allocations = {0};
    for (std::size_t i = 0; i < op_.allocations.size(); ++i) {
      const bool result = static_cast<int>(i) == block.allocation;
      if (!result && op_.allocations[i] > kSmall) return false;
      member_.allocations.push_back(result ? 0 : op_.allocations[i]);
    }
    return std::count(member_.allocations.begin(), member_.allocations.end(), 0) == 1;
  }

  bool take_numbers() {
    if (kind_ == InSlices::kEmbeddingBackward) {  // .. of grad_output, indices: as many, skipped, scaled by their count
      member_.of_indices = true;
      const bool plain = op_.arguments[2].isInt() && op_.arguments[3].isInt() && op_.arguments[4].isBool();
      return plain && op_.arguments[2].toInt() == rows_ && !op_.arguments[4].toBool();
    }
    if (kind_ == InSlices::kLogSoftmaxBackward) {
      member_.dim_argument = 2;
      const std::int64_t dim = op_.arguments[2].isInt() ? op_.arguments[2].toInt() : 0;
      return op_.arguments[2].isInt() && (dim == -1 || dim == static_cast<std::int64_t>(result_->sizes.size()) - 1);
    }
    if (kind_ != InSlices::kSum) return true;
    member_.alpha_argument = 2;
    return op_.arguments[2].isInt() && op_.arguments[2].toInt() == 1;
  }

  bool take_operand(std::size_t position, SlotId slot) {
    const TensorMeta& meta = tape_.slots[slot.index()].meta;
    if (!is_plain(meta)) return false;
    RowOperand operand;
    operand.position = position;
    operand.slot = slot;
    const bool dense = meta.sizes == result_->sizes && meta.is_contiguous();
    const bool one = elements(meta) == 1;
    if (kind_ == InSlices::kEmbeddingBackward) {  // each slice looks through all indices
      const bool indices = position == 1;
      const std::int64_t few = rows_ * width_ / kIndexShare;
      if (!meta.is_contiguous() || (indices && (meta.dtype != at::ScalarType::Long || elements(meta) > few)))
        return false;
    } else if (kind_ == InSlices::kLogSoftmaxBackward) {
      operand.by_row = dense;
      if (!dense) return false;
    } else if (kind_ == InSlices::kNllBackward) {
      // grad_output, self, target, weight, reduction, ignore_index, total_weight
      const bool by_sample = op_.arguments[4].toInt() == 0;
      operand.by_row = position == 1 || position == 2 || (position == 0 && by_sample);
      if (result_->sizes.size() != 2 || (operand.by_row && meta.sizes.at(0) != rows_)) return false;
      if (position == 1 && !dense) return false;
    } else if (dense) {
      operand.by_row = true;
    } else if (result_->sizes.size() == 2 && meta.sizes.size() == 2) {
      operand.by_row = meta.sizes[0] == rows_;
    } else if (!one && !(meta.sizes.size() == 1 && meta.sizes[0] == width_)) {
      return false;
    }
    if (operand.by_row) operand.rows = dense ? as_rows(meta) : meta;
    member_.operands.push_back(std::move(operand));
    return true;
  }

  const Tape& tape_;
  const TapeOp& op_;
  InSlices kind_ = InSlices::kElements;
  RowMember member_;
  const TensorMeta* result_ = nullptr;
  std::int64_t rows_ = 0;
  std::int64_t width_ = 0;
};

class Finder {
 public:
  Finder(const Tape& tape, const RowSlicing& options, const std::vector<bool>& taken)
      : tape_(tape), options_(options), taken_(taken) {}

  std::vector<RowChain> find() {
    if (!options_.on || !tape_.device.is_cpu()) return {};
    note_uses();
    chains_.resize(tape_.ops.size());
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      if (!taken_[i] && facts_of(tape_.ops[i].handle).in_slices != InSlices::kNo) grow(TapeOpId(i));
    }
    std::vector<RowChain> found;
    for (std::optional<Growing>& growing : chains_) {
      if (growing && !growing->taken_in && is_worth(*growing)) found.push_back(finish(*growing));
    }
    return found;
  }

 private:
  struct Growing {
    std::vector<RowMember> members;
    std::int64_t rows = 0;
    std::int64_t width = 0;
    std::int64_t largest_bytes = 0;  // of what is no longer made
    bool taken_in = false;
  };

  void note_uses() {
    users_.resize(tape_.blocks.size());
    writes_.resize(tape_.blocks.size());
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      for_each_access(tape_, tape_.ops[i], [&](BlockId block, Access access) {
        users_[block.index()].insert(i);
        if (access == Access::kWrite) writes_[block.index()].push_back(i);
      });
    }
    for (const SlotId slot : tape_.returned) {
      if (slot.valid()) users_[tape_.slots[slot.index()].block.index()].insert(tape_.ops.size());
    }
  }

  void grow(TapeOpId id) {
    MemberOf maker(tape_, id);
    std::optional<RowMember> member = maker.make();
    if (!member) return;
    Growing now{{*member}, maker.rows(), maker.width(), 0, false};
    for (const RowOperand& operand : member->operands) take_in_maker(now, *member, operand);
    chains_[id.index()] = std::move(now);
  }

  void take_in_maker(Growing& now, const RowMember& user, const RowOperand& operand) {
    const Slot& slot = tape_.slots[operand.slot.index()];
    const Block& block = tape_.blocks[slot.block.index()];
    if (block.external || !operand.by_row || users_[slot.block.index()].size() != 1) return;
    std::optional<Growing>& maker = chains_[block.creator.index()];
    if (!maker || maker->taken_in || maker->rows != now.rows || maker->width != now.width) return;
    if (maker->members.back().row_bytes != user.row_bytes) return;  // rows stay where they are
    if (!all_looks_by_row(user, slot.block)) return;
    // What the maker reads lives on to the user
    const std::set<BlockId> here = reads(now), there = reads(*maker);
    std::int64_t large = 0, small = 0;
    for (const BlockId read : there) {
      const std::vector<std::size_t>& writes = writes_[read.index()];
      if (std::any_of(writes.begin(), writes.end(),
                      [&](std::size_t w) { return w > maker->members.front().op.index() && w < user.op.index(); }))
        return;
      if (here.contains(read) || tape_.blocks[read.index()].external) continue;
      const std::int64_t bytes = tape_.blocks[read.index()].bytes;
      (bytes * kExtraShare <= block.bytes ? small : large) += bytes;
    }
    if (large > block.bytes || small * kExtraShare > block.bytes) return;
    now.largest_bytes = std::max({now.largest_bytes, maker->largest_bytes, block.bytes});
    now.members.insert(now.members.end(), maker->members.begin(), maker->members.end());
    std::sort(now.members.begin(), now.members.end(),
              [](const RowMember& a, const RowMember& b) { return a.op.index() < b.op.index(); });
    maker->taken_in = true;
  }

  // The op looks at all of the block, row after row, and in no other way.
  [[nodiscard]] bool all_looks_by_row(const RowMember& user, BlockId block) const {
    return std::all_of(user.operands.begin(), user.operands.end(), [&](const RowOperand& operand) {
      if (tape_.slots[operand.slot.index()].block != block) return true;
      const TensorMeta& rows = operand.rows;
      return operand.by_row && rows.sizes.size() == 2 && rows.storage_offset == 0 && rows.is_contiguous() &&
             elements(rows) * static_cast<std::int64_t>(rows.dtype.itemsize()) == tape_.blocks[block.index()].bytes;
    });
  }

  // By the members, made by none of them.
  [[nodiscard]] std::set<BlockId> reads(const Growing& growing) const {
    std::set<BlockId> read;
    for (const RowMember& member : growing.members) {
      for (const RowOperand& operand : member.operands) read.insert(tape_.slots[operand.slot.index()].block);
    }
    for (const RowMember& member : growing.members) read.erase(tape_.op(member.op).creates[0]);
    return read;
  }

  // Others lie over their operands as they are.
  [[nodiscard]] bool is_worth(const Growing& growing) const {
    return growing.largest_bytes > 0 && growing.largest_bytes >= options_.least_bytes &&
           std::any_of(growing.members.begin(), growing.members.end(), [&](const RowMember& member) {
             return member.of_indices ||
                    facts_of(tape_.op(member.op).handle).in_slices == InSlices::kLogSoftmaxBackward;
           });
  }

  [[nodiscard]] RowChain finish(const Growing& growing) const {
    RowChain chain{growing.members, growing.rows, 1, 1, options_.wrong};
    std::int64_t widest = 1;
    for (std::size_t m = 0; m < chain.members.size(); ++m) {
      RowMember& member = chain.members[m];
      widest = std::max(widest, member.row_bytes);
      member.last_use = static_cast<int>(m);
      for (RowOperand& operand : member.operands) {
        const BlockId block = tape_.slots[operand.slot.index()].block;
        for (std::size_t before = 0; before < m; ++before) {
          if (tape_.op(chain.members[before].op).creates[0] != block) continue;
          operand.made_by = static_cast<int>(before);
          chain.members[before].last_use = static_cast<int>(m);
        }
      }
    }
    const std::int64_t most = std::max<std::int64_t>(1, chain.rows / kFewSlices);  // rows in all slices at once
    chain.workers = std::clamp<std::int64_t>(kernel_threads().openmp, 1, most);
    chain.slice_rows = std::clamp<std::int64_t>(options_.slice_bytes / widest, 1, most / chain.workers);
    return chain;
  }

  const Tape& tape_;
  RowSlicing options_;
  const std::vector<bool>& taken_;
  std::vector<std::set<std::size_t>> users_;      // by block: the ops that look at it; one beyond all: it is returned
  std::vector<std::vector<std::size_t>> writes_;  // by block
  std::vector<std::optional<Growing>> chains_;    // by op that ends them
};

}  // namespace

std::vector<RowChain> find_row_chains(const Tape& tape, const RowSlicing& options, const std::vector<bool>& taken) {
  return Finder(tape, options, taken).find();
}

void fix_numbers(Tape& tape, const std::vector<RowChain>& chains) {
  for (TapeOp& op : tape.ops) op.fixed_number = -1;
  for (const RowChain& chain : chains) {
    for (const RowMember& member : chain.members) tape.op(member.op).fixed_number = member.alpha_argument;
  }
}

std::vector<std::pair<BlockId, BlockId>> in_place_reuse_blocks(const Tape& tape, const RowChain& chain) {
  const BlockId result = tape.op(chain.last()).creates[0];
  const std::int64_t row_bytes = chain.members.back().row_bytes;
  std::vector<std::pair<BlockId, bool>> looks;  // block, row after row
  for (const RowMember& member : chain.members) {
    for (const RowOperand& operand : member.operands) {
      if (operand.made_by >= 0) continue;
      const BlockId id = tape.slots[operand.slot.index()].block;
      const Block& block = tape.blocks[id.index()];
      bool fits = operand.by_row && !block.external && block.device == tape.device && operand.rows.sizes.size() == 2 &&
                  operand.rows.storage_offset == 0 && operand.rows.is_contiguous();
      if (fits) {
        const std::int64_t bytes = operand.rows.sizes[1] * static_cast<std::int64_t>(operand.rows.dtype.itemsize());
        fits = bytes == row_bytes && bytes * chain.rows == block.bytes;
      }
      const auto known = std::find_if(looks.begin(), looks.end(), [&](const auto& look) { return look.first == id; });
      if (known == looks.end()) {
        looks.emplace_back(id, fits);
      } else {
        known->second = known->second && fits;
      }
    }
  }
  std::vector<std::pair<BlockId, BlockId>> pairs;
  for (const auto& [block, fits] : looks) {
    if (fits) pairs.emplace_back(block, result);
  }
  return pairs;
}

}  // namespace stowage::runtime
