#include "runtime/replay/tile_members.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/replay/kernel_table.h"
#include "runtime/replay/tile_rows.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kSpreads = 4;     // what is so many times larger than its operands is made of rows and columns
constexpr std::size_t kMostSpread = 16;  // ops for one operand

std::string plain_name(const TapeOp& op) { return full_name(op.handle); }

class MemberSearch : public RegionWork {
 public:
  MemberSearch(const Tape& tape, TapeOpId product)
      : RegionWork(tape), product_(product), big_(tape.blocks.size(), false) {}

  std::optional<RegionMembers> find(std::string& refusal) {
    if (take_members())
      return RegionMembers{std::move(members_), std::move(makers_), std::move(results_), std::move(big_), rows_};
    refusal = refusal_;
    return {};
  }

 private:
  [[nodiscard]] const Block& block_of(SlotId id) const { return tape_.blocks[slot(id).block.index()]; }
  [[nodiscard]] bool is_big(SlotId id) const { return big_[slot(id).block.index()]; }
  [[nodiscard]] bool made_inside(BlockId block) const { return makers_.contains(block); }

  // Anew with each op found that makes something of this size of smaller things: it is a member, too.
  bool take_members() {
    for (std::size_t known = 0;; known = spreading_.size()) {
      members_.clear();
      makers_.clear();
      results_.clear();
      refusal_.clear();
      big_.assign(tape_.blocks.size(), false);
      const bool taken = take_product() && take_all();
      if (spreading_.size() == known) return taken;
    }
  }

  bool take_product() {
    const TapeOp& op = tape_.op(product_);
    const BlockId made = op.creates.at(0);
    const TensorMeta& meta = slot(tape_.blocks[made.index()].owner).meta;
    rows_ = meta.sizes.at(0);
    width_ = meta.sizes.at(1);
    if (rows_ < kFewTiles) return refuse(op, "has few rows");
    return take(product_);
  }

  // The ops that look at what the product makes, and at what is made of that in its size.
  bool take_all() {
    for (std::size_t i = product_.index() + 1; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      bool looks = spreading_.contains(i);
      for_each_access(tape_, op, [&](BlockId block, Access) { looks = looks || big_[block.index()]; });
      if (looks && !take(TapeOpId(i))) return false;
    }
    for (const SlotId id : tape_.returned)
      if (id.valid() && is_big(id)) return refuse("the step returns or keeps what all rows are needed of");
    return true;
  }

  bool take(TapeOpId id) {
    const TapeOp& op = tape_.op(id);
    if (op.role != TapeOp::Role::kKernel) return refuse(op, "looks at all rows, and is no kernel");
    if (op.random_order >= 0 || op.jump.moves()) return refuse(op, "draws random numbers");
    if (op.settings != 0) return refuse(op, "runs under settings of PyTorch that the step changes");
    for (const TensorRef& ref : op.tensors)
      if (ref.slots.size() > 1) return refuse(op, "takes a list of tensors");
    TileMember member;
    member.op = id;
    member.results = op.creates;
    if (!classify(op, member)) return refuse(op, "looks at all rows, and is not known to work row by row");
    for (std::size_t r = 0; r < member.results.size(); ++r)
      if (!take_result(id, member.kind_of(r), member.results[r])) return false;
    if (member.kind == TileKind::kInPlace) makers_[slot(member.operands[0].slot).block].push_back(members_.size());
    members_.push_back(std::move(member));
    return true;
  }

  bool take_result(TapeOpId maker, TileKind kind, BlockId id) {
    const TapeOp& op = tape_.op(maker);
    const Block& block = tape_.blocks[id.index()];
    const TensorMeta& meta = slot(block.owner).meta;
    if (block.device != tape_.device) return refuse(op, "makes something elsewhere");
    TileOutput output{id, kind, meta};
    if (kind == TileKind::kRows) {
      const std::optional<TensorMeta> rows = rows_first(meta, rows_);
      if (!rows || !fills_by_row(*rows, block)) return refuse(op, "does not give rows one after the other");
      output.rows = *rows;
      makers_[id].push_back(members_.size());
      // What products make of the region's rows is its result: an input's gradient, what an MLP block gives
      const bool made_for_it = product_argument(plain_name(op)) < 0 || makes_rows(maker);
      big_[id.index()] = rows->sizes.size() == 2 && rows->sizes[1] == width_ && made_for_it;
    } else if (!meta.is_contiguous() || meta.storage_offset != 0 ||
               numbers_of(meta) * bytes_each(meta) != block.bytes) {
      return refuse(op, "does not give a dense result");
    }
    results_.emplace(id, std::move(output));
    return true;
  }

  // A product of rows that are not the region's.
  [[nodiscard]] bool makes_rows(TapeOpId op) const { return op == product_ || spreading_.contains(op.index()); }

  // ---- What an op does with rows

  bool classify(const TapeOp& op, TileMember& member) {
    const std::string name = plain_name(op);
    const std::string functional = functional_name(name);
    if (const int first = product_argument(name); first >= 0)
      return of_product(op, member, static_cast<std::size_t>(first));
    if (name == "aten::nll_loss_forward") return of_nll(op, member);
    if (name == "aten::nll_loss_backward") return of_nll_backward(op, member);
    if (name == "aten::sum") {
      member.kind = TileKind::kAll;
      return by_row(op, member, 0);
    }
    if (reduces(name)) return of_reduction(op, member);
    if (const int at = row_softmax_argument(name); at >= 0) return of_softmax(op, member, at);
    if (is_elementwise(name) && op.creates.size() == 1) return of_elements(op, member);
    if (functional.empty() || !is_elementwise(functional) || !op.creates.empty()) return false;
    member.kind = TileKind::kInPlace;
    return of_elements(op, member) && member.operands[0].inside && writes_first_alone(op);
  }

  static bool writes_first_alone(const TapeOp& op) {
    for (std::size_t i = 0; i < op.tensors.size(); ++i)
      if ((access_of(op, i) == Access::kWrite) != (i == 0)) return false;
    return true;
  }

  [[nodiscard]] static SlotId tensor_at(const TapeOp& op, std::size_t position) {
    const TensorRef& ref = op.tensors.at(position);
    return ref.kind == TensorRef::Kind::kTensor && !ref.slots.empty() ? ref.slots[0] : SlotId();
  }

  // The operand there, rows first; `whole` where it is none that goes by rows.
  bool by_row(const TapeOp& op, TileMember& member, std::size_t position) {
    const SlotId id = tensor_at(op, position);
    if (!id.valid()) return false;
    const std::optional<TensorMeta> rows = rows_first(slot(id).meta, rows_);
    return rows && add_rows(member, position, id, *rows, false);
  }

  bool add_rows(TileMember& member, std::size_t position, SlotId id, const TensorMeta& rows, bool transposed) {
    TileOperand operand{position, id, made_inside(slot(id).block), true, transposed, rows};
    if (operand.inside) {  // its rows are those of the tile's tensor
      const TensorMeta& owner = results_.at(slot(id).block).rows;
      const std::int64_t width = owner.sizes.size() == 2 ? owner.sizes[1] : 1;
      const std::int64_t used = rows.sizes.size() == 2 && rows.sizes[1] > 0 ? (rows.sizes[1] - 1) * rows.strides[1] : 0;
      if (owner.dtype != rows.dtype || rows.strides[0] != width || rows.storage_offset + used >= width) return false;
    }
    if (!operand.inside && rows.sizes.size() == 2 && rows.sizes[1] == width_) note_spreading(block_of(id));
    member.operands.push_back(std::move(operand));
    return true;
  }

  void note_spreading(const Block& block) {
    std::set<std::size_t> ops;
    if (spreads(block, ops)) spreading_.insert(ops.begin(), ops.end());
  }

  // Whether it is of the first product's size, and later ops make it of smaller things, row by row; and which.
  bool spreads(const Block& block, std::set<std::size_t>& ops) const {
    if (block.external || block.creator.index() <= product_.index()) return false;
    const TapeOp& maker = tape_.op(block.creator);
    if (maker.creates.size() != 1 || numbers_of(slot(block.owner).meta) != rows_ * width_) return false;
    if (ops.size() == kMostSpread && !ops.contains(block.creator.index())) return false;
    if (!ops.insert(block.creator.index()).second) return true;
    if (const int first = product_argument(plain_name(maker)); first >= 0) {
      const SlotId left = tensor_at(maker, static_cast<std::size_t>(first));
      if (!left.valid() || slot(left).meta.sizes.size() != 2 || slot(left).meta.sizes[0] != rows_) return false;
      return slot(left).meta.sizes[1] * kWidens <= width_;
    }
    if (!is_elementwise(plain_name(maker))) return false;
    bool all = true;
    for_each_access(tape_, maker, [&](BlockId read, Access) {
      const Block& operand = tape_.blocks[read.index()];
      all = all && (operand.bytes * kSpreads <= block.bytes || spreads(operand, ops));
    });
    return all;
  }

  void whole(TileMember& member, std::size_t position, SlotId id) {
    member.operands.push_back({position, id, false, false, false, slot(id).meta});
  }

  // All tensors that by_row() has not taken are whole; none may be made by the region in its size.
  bool others_whole(const TapeOp& op, TileMember& member) {
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      const bool taken = std::any_of(member.operands.begin(), member.operands.end(),
                                     [&](const TileOperand& operand) { return operand.position == i; });
      if (taken || op.tensors[i].slots.empty() || !op.tensors[i].slots[0].valid()) continue;
      if (op.tensors[i].kind != TensorRef::Kind::kTensor || is_big(op.tensors[i].slots[0])) return false;
      whole(member, i, op.tensors[i].slots[0]);
    }
    return true;
  }

  bool of_product(const TapeOp& op, TileMember& member, std::size_t first) {
    const SlotId left = tensor_at(op, first), right = tensor_at(op, first + 1);
    if (!left.valid() || !right.valid()) return false;
    const TensorMeta& a = slot(left).meta;
    const TensorMeta& b = slot(right).meta;
    if (a.sizes.size() != 2 || b.sizes.size() != 2 || op.creates.size() != 1) return false;
    const bool makes_these = makes_rows(member.op);
    const bool turned_left = is_big(left) && a.strides[0] == 1 && width_ > 1;
    if (a.sizes[0] == rows_ && !turned_left && !is_big(right) && (makes_these || is_big(left)))
      return add_rows(member, first, left, a, false) && others_whole(op, member);
    if (first != 0 || a.sizes[1] != rows_ || b.sizes[0] != rows_) return false;
    TensorMeta turned = a;
    std::swap(turned.sizes[0], turned.sizes[1]);
    std::swap(turned.strides[0], turned.strides[1]);
    member.kind = TileKind::kProduct;
    return add_rows(member, 0, left, turned, true) && add_rows(member, 1, right, b, false);
  }

  bool of_nll(const TapeOp& op, TileMember& member) {
    if (op.creates.size() != 2 || !op.arguments[3].isInt()) return false;
    member.kind = op.arguments[3].toInt() == 0 ? TileKind::kNllRows : TileKind::kNll;
    return by_row(op, member, 0) && by_row(op, member, 1) && others_whole(op, member);
  }

  bool of_nll_backward(const TapeOp& op, TileMember& member) {
    // grad_output, self, target, weight, reduction, ignore_index, total_weight
    if (!op.arguments[4].isInt() || (op.arguments[4].toInt() == 0 && !by_row(op, member, 0))) return false;
    return by_row(op, member, 1) && by_row(op, member, 2) && others_whole(op, member);
  }

  bool of_softmax(const TapeOp& op, TileMember& member, int argument) {
    const c10::IValue& dim = op.arguments[static_cast<std::size_t>(argument)];
    const auto dims = static_cast<std::int64_t>(slot(tensor_at(op, 0)).meta.sizes.size());
    if (!dim.isInt() || (dim.toInt() != -1 && dim.toInt() != dims - 1)) return false;
    member.dim_argument = argument;
    return by_row(op, member, 0) && (argument == 1 || by_row(op, member, 1));
  }

  bool of_reduction(const TapeOp& op, TileMember& member) {
    const c10::IValue& given = op.arguments[1];
    const auto dims = static_cast<std::int64_t>(slot(tensor_at(op, 0)).meta.sizes.size());
    std::vector<std::int64_t> over;
    if (given.isInt()) over = {given.toInt()};
    if (given.isIntList()) over = given.toIntVector();
    for (std::int64_t& dim : over) dim += dim < 0 ? dims : 0;
    std::sort(over.begin(), over.end());
    if (!by_row(op, member, 0) || member.operands[0].rows.sizes.size() != 2 || over.empty()) return false;
    member.dim_argument = 1;
    if (over == std::vector<std::int64_t>{dims - 1}) return true;
    member.kind = TileKind::kColumns;
    member.dim = 0;
    for (std::int64_t d = 0; d < dims - 1; ++d)
      if (over.size() != static_cast<std::size_t>(dims - 1) || over[static_cast<std::size_t>(d)] != d) return false;
    return plain_name(op) == "aten::sum.dim_IntList";
  }

  // Operands may be broadcast: over the rows, or over the columns.
  bool of_elements(const TapeOp& op, TileMember& member) {
    const SlotId made = op.creates.empty() ? tensor_at(op, 0) : tape_.blocks[op.creates[0].index()].owner;
    const TensorMeta& result = slot(made).meta;
    if (result.sizes.size() < 2) return false;
    const std::size_t lead = result.sizes.size() - 1;
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      if (op.tensors[i].slots.empty() || !op.tensors[i].slots[0].valid()) continue;
      const SlotId id = op.tensors[i].slots[0];
      TensorMeta meta = slot(id).meta;
      if (meta.sizes.empty()) {
        whole(member, i, id);
        continue;
      }
      while (meta.sizes.size() < result.sizes.size()) {
        meta.sizes.insert(meta.sizes.begin(), 1);
        meta.strides.insert(meta.strides.begin(), 0);
      }
      const auto same = std::equal(result.sizes.begin(), result.sizes.end() - 1, meta.sizes.begin());
      const auto at = static_cast<std::ptrdiff_t>(lead);
      const bool none = std::all_of(meta.sizes.begin(), meta.sizes.begin() + at, [](auto size) { return size == 1; });
      const std::optional<TensorMeta> rows = same || none ? folded(meta, lead) : std::nullopt;
      if (!rows || (!same && is_big(id))) return false;
      if (same) {
        if (!add_rows(member, i, id, *rows, false)) return false;
      } else {
        whole(member, i, id);
        member.operands.back().rows = *rows;
      }
    }
    return true;
  }

  TapeOpId product_;
  std::set<std::size_t> spreading_;  // ops of the tape
  std::vector<bool> big_;
  std::vector<TileMember> members_;
  std::map<BlockId, std::vector<std::size_t>> makers_;
  std::map<BlockId, TileOutput> results_;
  std::int64_t rows_ = 0;
  std::int64_t width_ = 0;
};

}  // namespace

std::optional<RegionMembers> find_members(const Tape& tape, TapeOpId product, std::string& refusal) {
  return MemberSearch(tape, product).find(refusal);
}

}  // namespace stowage::runtime
