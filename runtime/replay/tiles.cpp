#include "runtime/replay/tiles.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "runtime/replay/kernel_table.h"
#include "runtime/replay/tile_rows.h"
#include "runtime/replay/tile_run.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kFewTiles = 4;    // at least
constexpr std::int64_t kManyTiles = 16;  // at least, of as many rows as make a product worth while
constexpr std::int64_t kWorthRows = 32;
constexpr std::int64_t kEvenRows = 16;    // rows of a tile are a multiple of it, where they are more
constexpr std::int64_t kSpreads = 4;      // what is so many times larger than its operands is made of rows and columns
constexpr std::int64_t kPoolRoom = 4096;  // for what kernels take beside their results

std::string plain_name(const TapeOp& op) { return full_name(op.handle); }

// All that is made of one product's logits.
class Head {
 public:
  Head(const Tape& tape, TapeOpId product, const TileOptions& options)
      : tape_(tape), product_(product), options_(options), big_(tape.blocks.size(), false) {}

  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  [[nodiscard]] std::vector<TapeOpId> ops() const {
    std::vector<TapeOpId> ops;
    for (const TileMember& member : members_) ops.push_back(member.op);
    return ops;
  }

  // The tiles of the loss, then those of its gradients; empty: refusal().
  std::vector<Tiles> find() {
    if (!take_members()) return {};
    std::vector<Tiles> found;
    note_levels();
    for (int level = 0; level <= 1 && refusal_.empty(); ++level) {
      std::optional<Tiles> tiles = of_level(level);
      if (tiles) found.push_back(std::move(*tiles));
    }
    if (refusal_.empty() && found.empty()) refuse("nothing of it is used");
    if (found.size() == 2 && found[1].at.index() < found[0].at.index())
      refuse(tape_.op(product_), "makes logits whose gradients are needed before the loss is known");
    return refusal_.empty() ? found : std::vector<Tiles>();
  }

 private:
  bool refuse(const std::string& why) {
    if (refusal_.empty()) refusal_ = why;
    return false;
  }
  bool refuse(const TapeOp& op, const std::string& why) { return refuse(name_with_line(tape_, op) + " " + why); }

  [[nodiscard]] const Slot& slot(SlotId id) const { return tape_.slots[id.index()]; }
  [[nodiscard]] const Block& block_of(SlotId id) const { return tape_.blocks[slot(id).block.index()]; }
  [[nodiscard]] bool is_big(SlotId id) const { return big_[slot(id).block.index()]; }
  [[nodiscard]] bool made_inside(BlockId block) const { return makers_.contains(block); }

  // Anew with each op found that spreads rows and columns over a tensor of the logits' size: it is a member, too.
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

  // The ops that look at logits, and at what is made of them in their size.
  bool take_all() {
    for (std::size_t i = product_.index() + 1; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      bool looks = spreading_.contains(i);
      for_each_access(tape_, op, [&](BlockId block, Access) { looks = looks || big_[block.index()]; });
      if (looks && !take(TapeOpId(i))) return false;
    }
    for (const SlotId id : tape_.returned)
      if (id.valid() && is_big(id)) return refuse("the step returns or keeps what is as large as all logits");
    return true;
  }

  bool take(TapeOpId id) {
    const TapeOp& op = tape_.op(id);
    if (op.role != TapeOp::Role::kKernel) return refuse(op, "looks at logits, and is no kernel");
    if (op.random_order >= 0 || op.jump.moves()) return refuse(op, "draws random numbers");
    for (const TensorRef& ref : op.tensors)
      if (ref.slots.size() > 1) return refuse(op, "takes a list of tensors");
    TileMember member;
    member.op = id;
    member.results = op.creates;
    if (!classify(op, member)) return refuse(op, "looks at all logits, and is not known to work row by row");
    for (std::size_t r = 0; r < member.results.size(); ++r)
      if (!take_result(op, member.kind_of(r), member.results[r])) return false;
    if (member.kind == TileKind::kInPlace) makers_[slot(member.operands[0].slot).block].push_back(members_.size());
    members_.push_back(std::move(member));
    return true;
  }

  bool take_result(const TapeOp& op, TileKind kind, BlockId id) {
    const Block& block = tape_.blocks[id.index()];
    const TensorMeta& meta = slot(block.owner).meta;
    if (block.device != tape_.device) return refuse(op, "makes something elsewhere");
    TileOutput output{id, kind, meta};
    if (kind == TileKind::kRows) {
      const std::optional<TensorMeta> rows = rows_first(meta, rows_);
      if (!rows || !fills_by_row(*rows, block)) return refuse(op, "does not give rows one after the other");
      output.rows = *rows;
      makers_[id].push_back(members_.size());
      const bool input_gradient = plain_name(op) == "aten::mm" && id != logits();
      big_[id.index()] = rows->sizes.size() == 2 && rows->sizes[1] == width_ && !input_gradient;
    } else if (!meta.is_contiguous() || meta.storage_offset != 0 ||
               numbers_of(meta) * bytes_each(meta) != block.bytes) {
      return refuse(op, "does not give a dense result");
    }
    results_.emplace(id, std::move(output));
    return true;
  }

  [[nodiscard]] BlockId logits() const { return tape_.op(product_).creates.at(0); }

  // ---- What an op does with rows

  bool classify(const TapeOp& op, TileMember& member) {
    const std::string name = plain_name(op);
    const std::string functional = functional_name(name);
    if (name == "aten::mm" || name == "aten::addmm") return of_product(op, member, name == "aten::mm" ? 0 : 1);
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
    if (block.external || block.creator.index() <= product_.index()) return;
    const TapeOp& maker = tape_.op(block.creator);
    bool small = is_elementwise(plain_name(maker)) && maker.creates.size() == 1;
    for_each_access(tape_, maker, [&](BlockId read, Access) {
      small = small && tape_.blocks[read.index()].bytes * kSpreads <= block.bytes;
    });
    if (small) spreading_.insert(block.creator.index());
  }

  void whole(TileMember& member, std::size_t position, SlotId id) {
    member.operands.push_back({position, id, false, false, false, slot(id).meta});
  }

  // All tensors that by_row() has not taken are whole; none may be of the logits' size.
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
    const bool is_logits = op.creates[0] == logits();
    const bool turned_left = is_big(left) && a.strides[0] == 1 && width_ > 1;
    if (a.sizes[0] == rows_ && !turned_left && !is_big(right) && (is_logits || is_big(left)))
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

  // ---- Which of them go together

  // 0: needs no sum over rows of this head; 1: needs such a sum, or is a gradient; 2: needs a sum of those.
  void note_levels() {
    std::vector<int> outside(tape_.blocks.size(), -1);  // of what is made of sums over rows
    level_of_.assign(members_.size(), 0);
    std::map<BlockId, int> inside;
    std::size_t next = 0;
    for (std::size_t i = product_.index(); i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      if (next < members_.size() && members_[next].op.index() == i) {
        const TileMember& member = members_[next];
        int level = 0;
        for (const TileOperand& operand : member.operands) {
          const BlockId block = slot(operand.slot).block;
          level = std::max(level, operand.inside ? inside[block] : outside[block.index()] + 1);
        }
        // Gradients come later than what is known of the loss, whether they need it or not
        if (op.backward && !tape_.op(members_.front().op).backward) level = std::max(level, 1);
        if (member.kind == TileKind::kInPlace) inside[slot(member.operands[0].slot).block] = level;
        for (const BlockId block : member.results) inside[block] = outside[block.index()] = level;
        level_of_[next++] = level;
        if (level > 1) refuse(op, "needs numbers of the whole loss twice");
        continue;
      }
      int level = -1;
      for_each_access(tape_, op, [&](BlockId block, Access) { level = std::max(level, outside[block.index()]); });
      if (level < 0) continue;
      for (const BlockId block : op.creates) outside[block.index()] = level;
      for_each_access(tape_, op, [&](BlockId block, Access access) {
        if (access == Access::kWrite) outside[block.index()] = level;
      });
    }
  }

  [[nodiscard]] bool is_member(std::size_t op) const {
    return std::any_of(members_.begin(), members_.end(), [&](const TileMember& m) { return m.op.index() == op; });
  }

  // Others need all of it.
  [[nodiscard]] bool is_output(BlockId block, TileKind how) const {
    for (const SlotId id : tape_.returned)
      if (id.valid() && slot(id).block == block) return true;
    for (std::size_t i = product_.index(); i < tape_.ops.size(); ++i) {
      bool looks = false;
      for_each_access(tape_, tape_.ops[i], [&](BlockId b, Access) { looks = looks || b == block; });
      if (looks && (how != TileKind::kRows || !is_member(i))) return true;
    }
    for (const TileMember& member : members_)
      for (const TileOperand& operand : member.operands)
        if (slot(operand.slot).block == block && !operand.inside) return true;
    return false;
  }

  std::optional<Tiles> of_level(int level) {
    Tiles tiles;
    std::set<std::size_t> wanted;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      if (level_of_[m] != level) continue;
      for (const BlockId block : members_[m].results) {
        if (!is_output(block, results_.at(block).how)) continue;
        if (big_[block.index()])
          return refuse(tape_.op(members_[m].op), "makes what all rows are needed of"), std::nullopt;
        tiles.outputs.push_back(results_.at(block));
        want(m, wanted);
      }
    }
    if (tiles.outputs.empty()) return {};
    for (const std::size_t m : wanted) tiles.members.push_back(members_[m]);
    finish(tiles);
    if (!find_place(tiles)) return {};
    return tiles;
  }

  // With all that makes what it reads.
  void want(std::size_t m, std::set<std::size_t>& wanted) const {
    if (!wanted.insert(m).second) return;
    for (const TileOperand& operand : members_[m].operands) {
      if (!operand.inside) continue;
      for (const std::size_t maker : makers_.at(slot(operand.slot).block))
        if (maker < m) want(maker, wanted);
    }
  }

  void finish(Tiles& tiles) const {
    tiles.rows = rows_;
    tiles.wrong = options_.wrong;
    std::int64_t widest = 1;
    std::map<BlockId, std::size_t> last;
    for (std::size_t m = 0; m < tiles.members.size(); ++m) {
      TileMember& member = tiles.members[m];
      for (const BlockId block : member.results) {
        last[block] = m;
        if (member.kind == TileKind::kRows) widest = std::max(widest, tape_.blocks[block.index()].bytes / rows_);
      }
      for (const TileOperand& operand : member.operands) {
        const BlockId block = slot(operand.slot).block;
        if (operand.inside)
          last[block] = m;
        else if (std::find(tiles.reads.begin(), tiles.reads.end(), block) == tiles.reads.end())
          tiles.reads.push_back(block);
      }
    }
    for (const auto& [block, m] : last) tiles.members[m].dead.push_back(block);
    for (TileMember& member : tiles.members) member.over = over(member);
    std::int64_t rows = std::max<std::int64_t>(1, options_.tile_bytes / widest);
    const std::int64_t few = (rows_ + kFewTiles - 1) / kFewTiles, many = (rows_ + kManyTiles - 1) / kManyTiles;
    rows = std::min(rows, std::max(many, std::min(few, kWorthRows)));
    tiles.tile_rows = rows > kEvenRows ? rows / kEvenRows * kEvenRows : rows;
    tiles.pool_bytes = tile_pool_bytes(tape_, tiles) + kPoolRoom;
    tiles.named = tiles.members.back().op;
    for (const TileMember& member : tiles.members) {
      const TapeOp& op = tape_.op(member.op);
      if (checks_values(op.handle, op.backward)) tiles.named = member.op;
    }
    tiles.pool_bytes = std::max(tiles.pool_bytes, tape_.op(tiles.named).tile_pool_bytes);
  }

  // An operand whose tile dies there, and which the kernel may write over.
  [[nodiscard]] int over(const TileMember& member) const {
    if (member.kind != TileKind::kRows || member.results.size() != 1) return -1;
    if (facts_of(tape_.op(member.op).handle).in_place == InPlace::kNo) return -1;
    const TensorMeta& result = results_.at(member.results[0]).rows;
    for (std::size_t i = 0; i < member.operands.size(); ++i) {
      const TileOperand& operand = member.operands[i];
      const BlockId block = slot(operand.slot).block;
      const auto looks = std::count_if(member.operands.begin(), member.operands.end(),
                                       [&](const TileOperand& other) { return slot(other.slot).block == block; });
      const bool dies = std::find(member.dead.begin(), member.dead.end(), block) != member.dead.end();
      if (operand.inside && dies && looks == 1 && operand.rows.sizes == result.sizes &&
          operand.rows.strides == result.strides && operand.rows.dtype == result.dtype &&
          results_.at(block).rows.sizes == result.sizes)
        return static_cast<int>(i);
    }
    return -1;
  }

  // Where the tape has made all that the tiles read, and nobody has needed what they make.
  bool find_place(Tiles& tiles) {
    const std::set<BlockId> reads(tiles.reads.begin(), tiles.reads.end());
    std::size_t from = 0, until = tiles.members.back().op.index();
    std::map<std::size_t, const TileMember*> member_at;
    for (const TileMember& member : tiles.members) member_at[member.op.index()] = &member;
    std::map<BlockId, std::size_t> read_first;  // by which member's op; writes before must have happened, others not
    std::map<BlockId, std::size_t> read_last;
    for (const TileMember& member : tiles.members) {
      for (const TileOperand& operand : member.operands) {
        if (operand.inside) continue;
        const BlockId block = slot(operand.slot).block;
        read_first.try_emplace(block, member.op.index());
        read_last[block] = member.op.index();
      }
    }
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      if (member_at.contains(i)) continue;
      const TapeOp& op = tape_.ops[i];
      const auto changes = [&](BlockId block) {
        if (!reads.contains(block)) return;
        if (i < read_first.at(block))
          from = std::max(from, i + 1);
        else if (i > read_last.at(block))
          until = std::min(until, i);
        else
          from = until + 1;
      };
      for (const BlockId block : op.creates) changes(block);
      for_each_access(tape_, op, [&](BlockId block, Access access) {
        if (access == Access::kWrite) changes(block);
        for (const TileOutput& output : tiles.outputs)
          if (output.block == block) until = std::min(until, i);
      });
    }
    tiles.at = TapeOpId(until);
    if (from <= until) return true;
    return refuse(tape_.op(tiles.named),
                  "and the ops around it cannot be put together: others need a part of it before");
  }

  const Tape& tape_;
  TapeOpId product_;
  TileOptions options_;
  std::set<std::size_t> spreading_;  // ops of the tape
  std::vector<bool> big_;            // by block: of the logits' size, made of them
  std::vector<TileMember> members_;
  std::map<BlockId, std::vector<std::size_t>> makers_;  // of what has rows: the members that make or change it
  std::map<BlockId, TileOutput> results_;
  std::vector<int> level_of_;  // by member
  std::int64_t rows_ = 0;
  std::int64_t width_ = 0;
  std::string refusal_;
};

// The product that the operand of a log_softmax comes from, op by op.
TapeOpId product_before(const Tape& tape, TapeOpId softmax) {
  TapeOpId at = softmax;
  for (std::size_t steps = 0; steps < tape.ops.size(); ++steps) {
    const TensorRef& ref = tape.op(at).tensors.at(0);
    const std::string name = plain_name(tape.op(at));
    if (name == "aten::mm" || name == "aten::addmm") return at;
    if (steps > 0 && !is_elementwise(name)) return {};
    if (ref.kind != TensorRef::Kind::kTensor || !ref.slots[0].valid()) return {};
    const Block& block = tape.blocks[tape.slots[ref.slots[0].index()].block.index()];
    if (block.external) return {};
    at = block.creator;
  }
  return {};
}

bool reads_before_it_is_made(const std::vector<Tiles>& tiles) {
  std::set<BlockId> later;
  for (std::size_t i = tiles.size(); i-- > 0;) {
    for (const TileOutput& output : tiles[i].outputs) later.insert(output.block);
    if (std::any_of(tiles[i].reads.begin(), tiles[i].reads.end(), [&](BlockId id) { return later.contains(id); }))
      return true;
  }
  return false;
}

}  // namespace

TilesFound find_tiles(const Tape& tape, const TileOptions& options) {
  TilesFound found;
  found.within.assign(tape.ops.size(), false);
  if (!options.on) return found;
  const auto refuse = [&](const std::string& why) {
    if (found.refusal.empty()) found.refusal = why;
  };
  if (!tape.device.is_cpu()) {
    refuse("only steps on the CPU have their loss heads tiled");
    return found;
  }
  std::set<TapeOpId> tried;
  std::int64_t largest = -1;
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    const TapeOp& op = tape.ops[i];
    if (plain_name(op) != "aten::_log_softmax" || op.role != TapeOp::Role::kKernel || op.creates.size() != 1) continue;
    const std::int64_t bytes = tape.blocks[op.creates[0].index()].bytes;
    largest = std::max(largest, bytes);
    if (bytes < options.least_bytes) continue;
    const TapeOpId product = product_before(tape, TapeOpId(i));
    if (!product.valid()) {
      refuse(name_with_line(tape, op) + " is not of logits that a linear layer makes");
      continue;
    }
    if (!tried.insert(product).second) continue;
    Head head(tape, product, options);
    std::vector<Tiles> tiles = head.find();
    if (tiles.empty()) {
      refuse(head.refusal());
      continue;
    }
    const std::vector<TapeOpId> ops = head.ops();
    if (std::any_of(ops.begin(), ops.end(), [&](TapeOpId id) { return found.within[id.index()]; })) {
      refuse(name_with_line(tape, tape.op(product)) +
             " makes logits that are used together with those of another head");
      continue;
    }
    for (const TapeOpId id : ops) found.within[id.index()] = true;
    for (Tiles& each : tiles) found.tiles.push_back(std::move(each));
  }
  if (largest < 0) refuse("no log_softmax (a cross entropy) is in it");
  if (found.tiles.empty()) refuse("its logits take " + std::to_string(largest) + " bytes: too few to be tiled");
  std::stable_sort(found.tiles.begin(), found.tiles.end(),
                   [](const Tiles& a, const Tiles& b) { return a.at.index() < b.at.index(); });
  if (reads_before_it_is_made(found.tiles)) {
    found.tiles.clear();
    found.within.assign(tape.ops.size(), false);
    refuse("its heads need each other's results");
  }
  return found;
}

}  // namespace stowage::runtime
