#include "runtime/replay/tiles.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/replay/kernel_table.h"
#include "runtime/replay/tile_members.h"
#include "runtime/replay/tile_rows.h"
#include "runtime/replay/tile_run.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kManyTiles = 16;  // at least, of as many rows as make a product worth while; else kFewTiles
constexpr std::int64_t kWorthRows = 32;
constexpr std::int64_t kWorthRowsOfMlp = 256;  // hidden units are few beside logits: so many rows still take little
constexpr std::int64_t kEvenRows = 16;         // rows of a tile are a multiple of it, where they are more
constexpr std::int64_t kPoolRoom = 4096;       // for what kernels take beside their results

// The tiles of one region: which of its members go together, and where on the tape.
class Region : public RegionWork {
 public:
  Region(const Tape& tape, TapeOpId product, const TileOptions& options)
      : RegionWork(tape), product_(product), options_(options) {}

  [[nodiscard]] std::vector<TapeOpId> ops() const {
    std::vector<TapeOpId> ops;
    for (const TileMember& member : members_) ops.push_back(member.op);
    return ops;
  }

  // The tiles of the loss, or of an MLP block's result; then those of its gradients. Empty: refusal().
  std::vector<Tiles> find(bool mlp) {
    std::optional<RegionMembers> region = find_members(tape_, product_, refusal_);
    if (!region) return {};
    members_ = std::move(region->members);
    makers_ = std::move(region->makers);
    results_ = std::move(region->results);
    big_ = std::move(region->big);
    rows_ = region->rows;
    worth_rows_ = mlp ? kWorthRowsOfMlp : kWorthRows;
    if (mlp && !is_mlp()) refuse(tape_.op(product_), "is not the first layer of an MLP block");
    if (!refusal_.empty()) return {};
    std::vector<Tiles> found;
    note_levels();
    for (int level = 0; level <= 1 && refusal_.empty(); ++level) {
      std::optional<Tiles> tiles = of_level(level);
      if (tiles) found.push_back(std::move(*tiles));
    }
    if (refusal_.empty() && found.empty()) refuse("nothing of it is used");
    if (found.size() == 2 && found[1].at.index() < found[0].at.index())
      refuse(tape_.op(product_), "makes rows whose gradients are needed before what is made of all rows is known");
    return refusal_.empty() ? found : std::vector<Tiles>();
  }

 private:
  // Elementwise ops between products, and no softmax: rows that get wider, then narrower, or are summed to gradients.
  [[nodiscard]] bool is_mlp() const {
    bool elements = false, used = false;
    for (const TileMember& member : members_) {
      const std::string name = full_name(tape_.op(member.op).handle);
      if (row_softmax_argument(name) >= 0) return false;
      elements = elements || is_elementwise(name) || is_elementwise(functional_name(name));
      if (product_argument(name) < 0) continue;
      used = used || std::any_of(member.operands.begin(), member.operands.end(),
                                 [](const TileOperand& operand) { return operand.inside; });
    }
    return elements && used;
  }

  // 0: needs nothing made of this region's results; 1: needs something made of those of level 0, or is a gradient; 2: of
  // those of level 1.
  void note_levels() {
    std::vector<int> outside(tape_.blocks.size(), -1);  // of what is made of results
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
        if (level > 1) refuse(op, "needs what is made of all rows twice");
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
    rows = std::min(rows, std::max(many, std::min(few, worth_rows_)));
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

  TapeOpId product_;
  TileOptions options_;
  std::vector<bool> big_;
  std::vector<TileMember> members_;
  std::map<BlockId, std::vector<std::size_t>> makers_;
  std::map<BlockId, TileOutput> results_;
  std::vector<int> level_of_;  // by member
  std::int64_t rows_ = 0;
  std::int64_t worth_rows_ = kWorthRows;
};

// The product that the operand of a log_softmax comes from, op by op.
TapeOpId product_before(const Tape& tape, TapeOpId softmax) {
  TapeOpId at = softmax;
  for (std::size_t steps = 0; steps < tape.ops.size(); ++steps) {
    const TensorRef& ref = tape.op(at).tensors.at(0);
    const std::string name = full_name(tape.op(at).handle);
    if (product_argument(name) >= 0) return at;
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

// Tries one region after the other; each is tiled if it can be.
class TileSearch {
 public:
  TileSearch(const Tape& tape, const TileOptions& options) : tape_(tape), options_(options) {
    found_.within.assign(tape.ops.size(), false);
  }

  TilesFound find() {
    if (!options_.loss && !options_.mlp) return std::move(found_);
    if (!tape_.device.is_cpu()) {
      refuse("only steps on the CPU run in tiles");
      return std::move(found_);
    }
    if (options_.loss) find_heads();
    if (options_.mlp) find_mlps();
    std::stable_sort(found_.tiles.begin(), found_.tiles.end(),
                     [](const Tiles& a, const Tiles& b) { return a.at.index() < b.at.index(); });
    if (reads_before_it_is_made(found_.tiles)) {
      found_.tiles.clear();
      found_.within.assign(tape_.ops.size(), false);
      refuse("its parts need each other's results");
    }
    return std::move(found_);
  }

 private:
  void refuse(const std::string& why) {
    if (found_.refusal.empty()) found_.refusal = why;
  }

  // Whether it is tiled now.
  bool try_region(TapeOpId product, bool mlp, std::string& why) {
    Region region(tape_, product, options_);
    std::vector<Tiles> tiles = region.find(mlp);
    if (tiles.empty()) return why = region.refusal(), false;
    const std::vector<TapeOpId> ops = region.ops();
    if (std::any_of(ops.begin(), ops.end(), [&](TapeOpId id) { return found_.within[id.index()]; })) {
      why = name_with_line(tape_, tape_.op(product)) +
            " makes rows that are used together with those of another tiled part";
      return false;
    }
    for (const TapeOpId id : ops) found_.within[id.index()] = true;
    for (Tiles& each : tiles) found_.tiles.push_back(std::move(each));
    return true;
  }

  // Each that cannot be tiled is told.
  void find_heads() {
    std::set<TapeOpId> tried;
    std::int64_t largest = -1;
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      if (full_name(op.handle) != "aten::_log_softmax" || op.role != TapeOp::Role::kKernel || op.creates.size() != 1)
        continue;
      const std::int64_t bytes = tape_.blocks[op.creates[0].index()].bytes;
      largest = std::max(largest, bytes);
      if (bytes < options_.least_bytes) continue;
      const TapeOpId product = product_before(tape_, TapeOpId(i));
      if (!product.valid()) {
        refuse(name_with_line(tape_, op) + " is not of logits that a linear layer makes");
        continue;
      }
      std::string why;
      if (tried.insert(product).second && !try_region(product, false, why)) refuse(why);
    }
    if (largest < 0) refuse("no log_softmax (a cross entropy) is in it");
    if (found_.tiles.empty()) refuse("its logits take " + std::to_string(largest) + " bytes: too few to be tiled");
  }

  // Of all the products that make wider rows, few belong to MLP blocks: why one does not is told where none does.
  void find_mlps() {
    std::string first_why;
    bool any = false;
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      if (found_.within[i] || !widens(tape_.ops[i])) continue;
      std::string why;
      any = try_region(TapeOpId(i), true, why) || any;
      if (first_why.empty()) first_why = why;
    }
    if (!any) refuse(first_why.empty() ? "no product in it makes rows that are wide enough" : first_why);
  }

  [[nodiscard]] bool widens(const TapeOp& op) const {
    const int rows = product_argument(full_name(op.handle));
    if (rows < 0 || op.role != TapeOp::Role::kKernel || op.creates.size() != 1) return false;
    const Block& made = tape_.blocks[op.creates[0].index()];
    if (made.bytes < options_.least_bytes) return false;
    const TensorRef& right = op.tensors.at(static_cast<std::size_t>(rows) + 1);
    if (right.kind != TensorRef::Kind::kTensor || right.slots.empty() || !right.slots[0].valid()) return false;
    const std::vector<std::int64_t> sizes = tape_.slots[right.slots[0].index()].meta.sizes;
    return sizes.size() == 2 && sizes[0] * kWidens <= sizes[1];
  }

  const Tape& tape_;
  const TileOptions& options_;
  TilesFound found_;
};

}  // namespace

TilesFound find_tiles(const Tape& tape, const TileOptions& options) { return TileSearch(tape, options).find(); }

}  // namespace stowage::runtime
