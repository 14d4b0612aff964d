#include "runtime/replay/lower.h"

#include <algorithm>
#include <unordered_map>

#include "runtime/memory/device.h"
#include "runtime/memory/homes.h"
#include "runtime/replay/batch_norm.h"
#include "runtime/replay/in_place_reuse.h"
#include "runtime/torch/collectives.h"
#include "runtime/torch/compiled_kernel.h"
#include "runtime/torch/op_facts.h"
#include "stowage/io.h"

namespace stowage::runtime {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

// "mm", "mm_1", "mm_2", ...
class UniqueNames {
 public:
  std::string next(const std::string& base) {
    const int count = seen_[base]++;
    return count == 0 ? base : base + "_" + std::to_string(count);
  }

 private:
  std::unordered_map<std::string, int> seen_;
};

class Lowering {
 public:
  Lowering(const Tape& tape, const std::string& name, const LowerOptions& options)
      : tape_(tape),
        options_(options),
        on_the_side_(side_statistics(tape)),
        updater_(tape.blocks.size()),
        chain_at_(tape.ops.size(), -1),
        within_chain_(tape.ops.size(), false),
        product_at_(tape.ops.size(), -1) {
    TilesFound found = find_tiles(tape, options.tiles);
    out_.tiles = std::move(found.tiles);
    out_.tile_refusal = std::move(found.refusal);
    within_tiles_ = std::move(found.within);
    out_.chains = find_row_chains(tape, options.slicing, within_tiles_);
    for (std::size_t c = 0; c < out_.chains.size(); ++c) {
      for (const RowMember& member : out_.chains[c].members) within_chain_[member.op.index()] = true;
      chain_at_[out_.chains[c].last().index()] = static_cast<int>(c);
    }
    out_.products = find_products_over(tape, options.slicing, out_.chains, within_tiles_);
    for (std::size_t p = 0; p < out_.products.size(); ++p)
      product_at_[out_.products[p].op.index()] = static_cast<int>(p);
    out_.graph.name = name;
    out_.graph.align = device_at(tape.device).align_bytes();
    out_.buffer.resize(tape.blocks.size());
    out_.in_result.resize(tape.blocks.size(), false);
    out_.stays.resize(tape.blocks.size(), false);
    if (options.stay && tape.device.is_cpu()) find_staying();
    if (options.in_results) find_made_in_results();
  }

  Lowered run() {
    for (std::size_t i = 0; i < tape_.blocks.size(); ++i) {
      const Block& block = tape_.blocks[i];
      if (block.external && !block.dropped) add_buffer(BlockId(i), names_.next(block.name));
    }
    std::size_t tiles = 0;
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      while (tiles < out_.tiles.size() && out_.tiles[tiles].at.index() == i) add_tiles(static_cast<int>(tiles++));
      if (tape_.ops[i].role != TapeOp::Role::kKernel || within_tiles_[i]) continue;
      if (chain_at_[i] >= 0) {
        add_chain(chain_at_[i]);
      } else if (!within_chain_[i]) {
        add_op(TapeOpId(i));
      }
    }
    for (const SlotId slot : tape_.returned) {
      if (!slot.valid()) continue;
      add_copy_of_result(tape_.slots[slot.index()]);
      const BufferId id = out_.buffer[tape_.slots[slot.index()].block.index()];
      if (id.valid() && !out_.graph.buffers[id.index()].resident) out_.graph.buffers[id.index()].returned = true;
    }
    out_.tile.resize(out_.tape_op.size(), -1);
    if (options_.leaving) mark_leaving();
    if (!options_.once.empty()) mark_once();
    hold_back_updates();
    hold_back_behind_checks();
    hold_back_behind_reads();
    make_in_results();
    validate(out_.graph);
    seal(out_.graph);
    return std::move(out_);
  }

 private:
  BufferId add_buffer(BlockId id, std::string name) {
    const Block& block = tape_.blocks[id.index()];
    Buffer buffer;
    buffer.name = std::move(name);
    buffer.bytes = tape_.planned_bytes(block);
    buffer.kind = block.kind;
    buffer.resident = block.external;
    const BufferId buffer_id(out_.graph.buffers.size());
    out_.graph.buffers.push_back(std::move(buffer));
    out_.block.push_back(id);
    out_.buffer[id.index()] = buffer_id;
    return buffer_id;
  }

  void add_op(TapeOpId id) {
    const TapeOp& from = tape_.op(id);
    Op op;
    op.target = kind_of(from);
    const std::string called = is_compiled_kernel(from.handle) ? op.target : from.handle.schema().name();
    op.name = names_.next(called.substr(called.find("::") + 2));
    for_each_access(tape_, from, [&](BlockId block, Access access) {
      if (on_the_side_[block.index()]) {
        if (access == Access::kWrite) update_in_turn(block, op);
      } else {
        add_once(access == Access::kWrite ? op.writes : op.reads, out_.buffer[block.index()]);
      }
    });
    std::sort(op.after.begin(), op.after.end());
    std::erase_if(op.reads,
                  [&](BufferId b) { return std::find(op.writes.begin(), op.writes.end(), b) != op.writes.end(); });
    for (std::size_t c = 0; c < from.creates.size(); ++c) {
      op.creates.push_back(add_buffer(from.creates[c], c == 0 ? op.name : op.name + "." + std::to_string(c)));
    }
    if (std::any_of(from.born.begin(), from.born.end(), [](std::int32_t tick) { return tick != 0; }))
      op.born = from.born;
    op.ticks = from.ticks;
    op.scratch = from.scratch;
    op.cost_ns = from.cost_ns;
    op.rng = from.random_order >= 0;
    // What is read, too: when a number is told, as many collectives have run on each rank
    op.effect = (op.creates.empty() && op.writes.empty() && !op.rng) || is_collective(from.handle) ||
                (tape_.of_parts && std::ranges::binary_search(tape_.reads, id));
    for (const auto& [read, created] : in_place_reuse_blocks(tape_, from)) {
      if (out_.in_result[read.index()] || out_.in_result[created.index()]) continue;
      op.takeover.push_back({out_.buffer[read.index()], out_.buffer[created.index()]});
    }
    if (const int index = product_at_[id.index()]; index >= 0) {
      const ProductOver& product = out_.products[static_cast<std::size_t>(index)];
      op.takeover.push_back({out_.buffer[product.operand.index()], out_.buffer[product.result.index()]});
      op.scratch.push_back({product.largest_slice_bytes(), 0, op.ticks});
    }
    if (from.line >= 0) op.meta = "{\"line\":" + quoted(tape_.lines[static_cast<std::size_t>(from.line)]) + "}";
    out_.graph.ops.push_back(std::move(op));
    out_.tape_op.push_back(id);
    out_.chain.push_back(-1);
    out_.product.push_back(product_at_[id.index()]);
  }

  // One op that does what all members do, and makes only what the last one makes. The inside of a slice:
  //
  //   tick               0    1    2        the result of all rows is there throughout
  //   of member 0        ░░░░░░░░░          until the last member that reads it
  //   of member 1             ░░░░░░░░░     with several workers: all throughout, as they do not wait for each other
  void add_chain(int index) {
    const RowChain& chain = out_.chains[static_cast<std::size_t>(index)];
    const TapeOp& last = tape_.op(chain.last());
    Op op;
    op.target = full_name(last.handle);
    const std::string& schema_name = last.handle.schema().name();
    op.name = names_.next(schema_name.substr(schema_name.find("::") + 2));
    std::string taken_in;
    for (std::size_t m = 0; m < chain.members.size(); ++m) {
      const RowMember& member = chain.members[m];
      const auto tick = static_cast<std::int32_t>(m);
      op.cost_ns += tape_.op(member.op).cost_ns;
      for (const RowOperand& operand : member.operands) {
        if (operand.made_by < 0) add_once(op.reads, out_.buffer[tape_.slots[operand.slot.index()].block.index()]);
      }
      for (std::int64_t i = 0; i < chain.workers * static_cast<std::int64_t>(member.allocations.size()); ++i) {
        const std::size_t which = static_cast<std::size_t>(i) % member.allocations.size();
        const bool result = member.allocations[which] == 0;
        const auto end = static_cast<std::int32_t>(chain.members.size());
        // Workers do not wait for each other: what one has given back, another may not take
        const bool alone = chain.workers == 1;
        op.scratch.push_back({chain.allocation_bytes(member, which, chain.slice_rows), alone ? tick : 0,
                              alone ? (result ? member.last_use : tick) + 1 : end});
      }
      if (m + 1 < chain.members.size()) {
        taken_in += (taken_in.empty() ? "" : ",") + quoted(full_name(tape_.op(member.op).handle));
      }
    }
    op.ticks = static_cast<std::int32_t>(chain.members.size());
    op.creates.push_back(add_buffer(last.creates[0], op.name));
    for (const auto& [read, created] : in_place_reuse_blocks(tape_, chain)) {
      op.takeover.push_back({out_.buffer[read.index()], out_.buffer[created.index()]});
    }
    op.meta = "{\"in_slices\":[" + taken_in + "]";
    if (last.line >= 0) op.meta += ",\"line\":" + quoted(tape_.lines[static_cast<std::size_t>(last.line)]);
    op.meta += "}";
    out_.graph.ops.push_back(std::move(op));
    out_.tape_op.push_back(chain.last());
    out_.chain.push_back(index);
    out_.product.push_back(-1);
  }

  // One op that does what all members do, tile by tile, in memory that a tile takes, and makes only what others need.
  void add_tiles(int index) {
    const Tiles& tiles = out_.tiles[static_cast<std::size_t>(index)];
    const TapeOp& named = tape_.op(tiles.named);
    Op op;
    op.target = full_name(named.handle);
    const std::string& schema_name = named.handle.schema().name();
    op.name = names_.next("tiled_" + schema_name.substr(schema_name.find("::") + 2));
    std::string members;
    for (const TileMember& member : tiles.members) {
      op.cost_ns += tape_.op(member.op).cost_ns;
      members += (members.empty() ? "" : ",") + quoted(full_name(tape_.op(member.op).handle));
    }
    for (const BlockId block : tiles.reads) add_once(op.reads, out_.buffer[block.index()]);
    for (const TileOutput& output : tiles.outputs)
      op.creates.push_back(
          add_buffer(output.block, op.creates.empty() ? op.name : op.name + "." + std::to_string(op.creates.size())));
    op.scratch.push_back({tiles.pool_bytes, 0, op.ticks});
    op.meta = "{\"in_tiles\":[" + members + "],\"tile_rows\":" + std::to_string(tiles.tile_rows);
    if (named.line >= 0) op.meta += ",\"line\":" + quoted(tape_.lines[static_cast<std::size_t>(named.line)]);
    op.meta += "}";
    out_.graph.ops.push_back(std::move(op));
    out_.tape_op.push_back(tiles.named);
    out_.chain.push_back(-1);
    out_.product.push_back(-1);
    out_.tile.resize(out_.tape_op.size(), -1);
    out_.tile.back() = index;
  }

  // Batch norms that share running statistics update them in program order.
  void update_in_turn(BlockId statistics, Op& op) {
    OpId& last = updater_[statistics.index()];
    const OpId self(out_.graph.ops.size());
    if (last.valid() && last != self && std::find(op.after.begin(), op.after.end(), last) == op.after.end())
      op.after.push_back(last);
    last = self;
  }

  // May wait on the host: tensors of the model and its optimizer with memory of their own, that no array of NumPy looks into
  // (PyTorch leaves that mark in the storage), and that the step does not return. Statistics that are updated on the side
  // stay: an op that runs again does not see them.
  void mark_leaving() {
    std::vector<bool> returned(tape_.blocks.size(), false);
    for (const SlotId slot : tape_.returned)
      if (slot.valid()) returned[tape_.slots[slot.index()].block.index()] = true;
    for (std::size_t i = 0; i < tape_.blocks.size(); ++i) {
      const Block& block = tape_.blocks[i];
      const bool kind = block.kind == BufferKind::kParameter || block.kind == BufferKind::kOptimizerState ||
                        block.kind == BufferKind::kModuleBuffer || block.kind == BufferKind::kGradient;
      if (!block.external || !kind || block.input >= 0 || block.of_python || block.refreshed || returned[i]) continue;
      if (on_the_side_[i] || !block.tensor.defined() || !block.device.is_cpu() || block.device != tape_.device)
        continue;
      const c10::Storage& storage = block.tensor.storage();
      const bool whole = static_cast<std::int64_t>(storage.nbytes()) == block.bytes && block.bytes > 0;
      const bool movable = storage.resizable() || at_home(*storage.unsafeGetStorageImpl());
      if (whole && movable && storage.data() != nullptr) out_.graph.buffers[out_.buffer[i].index()].leaves = true;
    }
  }

  void mark_once() {
    for (std::size_t i = 0; i < out_.graph.ops.size(); ++i) {
      const std::vector<TapeOpId> members = members_of(OpId(i));
      out_.graph.ops[i].once = std::any_of(members.begin(), members.end(), [&](TapeOpId id) {
        return options_.once.contains(kind_of(tape_.op(id))) || options_.once.contains(full_name(tape_.op(id).handle));
      });
    }
  }

  // The step returns it as nothing but what its next call lets go of unread. (An accelerator's streams know no arena.)
  void find_staying() {
    for (const bool stays : {true, false}) {  // where it is returned as something else, too, it does not
      for (std::size_t i = 0; i < tape_.returned.size(); ++i) {
        const SlotId slot = tape_.returned[i];
        if (slot.valid() && tape_.until_next[i] == stays) out_.stays[tape_.slots[slot.index()].block.index()] = stays;
      }
    }
    for (std::size_t b = 0; b < tape_.blocks.size(); ++b)
      if (tape_.blocks[b].external || tape_.planned_bytes(tape_.blocks[b]) == 0) out_.stays[b] = false;
  }

  // What the step returns, made by one op's own allocation. Slices of rows and what takes the memory of its operand make
  // their results in the arena.
  void find_made_in_results() {
    for (const SlotId slot : tape_.returned) {
      if (!slot.valid()) continue;
      const BlockId id = tape_.slots[slot.index()].block;
      const Block& block = tape_.blocks[id.index()];
      if (block.external || out_.stays[id.index()] || tape_.planned_bytes(block) == 0 || !block.creator.valid())
        continue;
      const TapeOp& op = tape_.op(block.creator);
      const std::size_t at = block.creator.index();
      const bool plain = op.role == TapeOp::Role::kKernel && !within_tiles_[at] && !within_chain_[at] &&
                         chain_at_[at] < 0 && product_at_[at] < 0;
      const bool seen =
          block.allocation >= 0 && op.allocations.at(static_cast<std::size_t>(block.allocation)) == block.bytes;
      out_.in_result[id.index()] = plain && (seen || tape_.fake);
    }
    for (const ProductOver& product : out_.products) out_.in_result[product.operand.index()] = false;
  }

  // Once the order is settled: what is made in its result is there from the beginning of the step, like a parameter.
  //
  //   mm ──creates──► buffer       becomes     mm ──writes──► resident buffer
  void make_in_results() {
    for (Op& op : out_.graph.ops) {
      std::size_t kept = 0;
      for (std::size_t c = 0; c < op.creates.size(); ++c) {
        const BufferId id = op.creates[c];
        if (!out_.in_result[out_.block[id.index()].index()]) {
          op.creates[kept] = id;
          if (!op.born.empty()) op.born[kept] = op.born[c];
          ++kept;
          continue;
        }
        op.writes.push_back(id);
        Buffer& buffer = out_.graph.buffers[id.index()];
        buffer.resident = true;
        buffer.returned = false;
      }
      op.creates.resize(kept);
      if (!op.born.empty()) op.born.resize(kept);
    }
  }

  // Another result is copied out of the arena into a tensor that is there from the beginning of the step: a byte limit
  // counts it.
  void add_copy_of_result(const Slot& slot) {
    const Block& block = tape_.blocks[slot.block.index()];
    if (block.external || block.device != tape_.device) return;
    if (out_.in_result[slot.block.index()] || out_.stays[slot.block.index()]) return;
    std::int64_t extent = 1;
    for (std::size_t d = 0; d < slot.meta.sizes.size(); ++d) {
      extent =
          slot.meta.sizes[d] == 0 ? 0 : extent + (extent > 0 ? (slot.meta.sizes[d] - 1) * slot.meta.strides[d] : 0);
    }
    Buffer buffer;
    buffer.name = names_.next("result");
    buffer.bytes = extent * static_cast<std::int64_t>(slot.meta.dtype.itemsize());
    buffer.kind = BufferKind::kOutput;
    buffer.resident = true;
    out_.graph.buffers.push_back(std::move(buffer));
    out_.block.push_back(BlockId());
  }

  // The optimizer's ops that need no gradient (weight decay, step counters) could run before the forward pass. But an
  // error in the forward pass (a token out of range) must find the state as it was, so they wait for every forward op
  // that looks at the step's data and feeds no other forward op. All others wait for those. Costs no memory: these ops
  // make nothing.
  void hold_back_updates() {
    std::vector<OpId> last_forward;
    std::vector<bool> feeds_forward(out_.graph.buffers.size(), false);
    for (std::size_t i = out_.graph.ops.size(); i-- > 0;) {
      const TapeOp& from = tape_.op(out_.tape_op[i]);
      if (from.backward || from.section >= 0) continue;
      const Op& op = out_.graph.ops[i];
      const auto feeds = [&](BufferId b) { return static_cast<bool>(feeds_forward[b.index()]); };
      const bool fed = std::any_of(op.creates.begin(), op.creates.end(), feeds) ||
                       std::any_of(op.writes.begin(), op.writes.end(), feeds);
      if (!fed && looks_at_data(op)) last_forward.push_back(OpId(i));
      for (const BufferId b : op.reads) feeds_forward[b.index()] = true;
      for (const BufferId b : op.writes) feeds_forward[b.index()] = true;
    }
    std::sort(last_forward.begin(), last_forward.end());
    for (std::size_t i = 0; i < out_.graph.ops.size(); ++i) {
      Op& op = out_.graph.ops[i];
      if (tape_.op(out_.tape_op[i]).section < 0 || op.writes.empty() || makes_use_of_step(op)) continue;
      for (const OpId forward : last_forward) {
        if (forward.index() < i) op.after.push_back(forward);
      }
    }
  }

  // What writes to residents waits for every op that may raise because of its data, where no such op needs it: then an
  // error finds little to put back (executor.h). Costs memory only where such ops are in the backward pass: custom
  // ones.
  void hold_back_behind_checks() {
    std::vector<OpId> checks;  // that no later one depends on
    const std::vector<bool> feeds_check = ops_that_feed([&](std::size_t i) { return may_raise(i); });
    for (std::size_t i = 0; i < out_.graph.ops.size(); ++i) {
      if (may_raise(i) && !feeds_check[i]) checks.emplace_back(i);
    }
    // One after the other, so that the last will do
    for (std::size_t c = 0; c + 1 < checks.size(); ++c) add_after(checks[c + 1], checks[c]);
    if (checks.empty()) return;
    const std::vector<bool> follows = ops_that_need(checks.back());
    for (std::size_t i = checks.back().index() + 1; i < out_.graph.ops.size(); ++i) {
      const Op& op = out_.graph.ops[i];
      const bool writes =
          std::any_of(op.writes.begin(), op.writes.end(), [&](BufferId b) { return out_.graph.buffer(b).resident; });
      if (writes && !follows[i] && !feeds_check[i]) add_after(OpId(i), checks.back());
    }
  }

  bool may_raise(std::size_t i) const {
    const auto checks = [&](TapeOpId id) { return checks_values(tape_.op(id).handle, tape_.op(id).backward); };
    if (out_.tile[i] < 0) return checks(out_.tape_op[i]);
    const std::vector<TapeOpId> members = members_of(OpId(i));
    return std::any_of(members.begin(), members.end(), checks);
  }

  // By op: some later one that is such an op cannot run before it.
  template <class Which>
  std::vector<bool> ops_that_feed(Which which) const {
    std::vector<bool> feeds(out_.graph.ops.size(), false);
    // By later ops that are, or feed, such ones
    std::vector<bool> touched(out_.graph.buffers.size(), false), written(touched);
    for (std::size_t i = feeds.size(); i-- > 0;) {
      const Op& op = out_.graph.ops[i];
      const auto in = [](const std::vector<bool>& set) {
        return [&set](BufferId b) { return static_cast<bool>(set[b.index()]); };
      };
      feeds[i] = feeds[i] || std::any_of(op.creates.begin(), op.creates.end(), in(touched)) ||
                 std::any_of(op.writes.begin(), op.writes.end(), in(touched)) ||
                 std::any_of(op.reads.begin(), op.reads.end(), in(written));
      if (!feeds[i] && !which(i)) continue;
      for (const BufferId b : op.reads) touched[b.index()] = true;
      for (const BufferId b : op.writes) touched[b.index()] = written[b.index()] = true;
      for (const OpId before : op.after) feeds[before.index()] = true;
    }
    return feeds;
  }

  // By op: it cannot run before `first`.
  std::vector<bool> ops_that_need(OpId first) const {
    std::vector<bool> needs(out_.graph.ops.size(), false);
    std::vector<bool> made(out_.graph.buffers.size(), false), touched(made);  // by `first` and those that need it
    for (std::size_t i = first.index(); i < needs.size(); ++i) {
      const Op& op = out_.graph.ops[i];
      const auto in = [](const std::vector<bool>& set) {
        return [&set](BufferId b) { return static_cast<bool>(set[b.index()]); };
      };
      needs[i] = i == first.index() || std::any_of(op.reads.begin(), op.reads.end(), in(made)) ||
                 std::any_of(op.writes.begin(), op.writes.end(), in(touched)) ||
                 std::any_of(op.after.begin(), op.after.end(),
                             [&](OpId before) { return static_cast<bool>(needs[before.index()]); });
      if (!needs[i]) continue;
      for (const BufferId b : op.reads) touched[b.index()] = true;
      for (const BufferId b : op.writes) made[b.index()] = touched[b.index()] = true;
      for (const BufferId b : op.creates) made[b.index()] = touched[b.index()] = true;
    }
    return needs;
  }

  void add_after(OpId op, OpId before) {
    std::vector<OpId>& after = out_.graph.ops[op.index()].after;
    if (std::find(after.begin(), after.end(), before) == after.end())
      after.insert(std::upper_bound(after.begin(), after.end(), before), before);
  }

  // While Python waits for a number (numbers.h), nothing happens that Python has not come to and that is hard to take
  // back: writes to residents, and reads of what Python changes meanwhile. Nor does what has a shape that Python has
  // asked for, nor what may raise with the number that this call has: a mask with more rows than were recorded.
  void hold_back_behind_reads() {
    if (tape_.reads.empty()) return;
    std::vector<bool> changes(tape_.blocks.size(), false);
    for (std::size_t b = 0; b < tape_.blocks.size(); ++b)
      changes[b] = tape_.blocks[b].external && tape_.blocks[b].kind == BufferKind::kConstant;
    for (const TapeOp& from : tape_.ops) {
      if (from.role != TapeOp::Role::kHost) continue;
      for (const BlockId block : from.creates) changes[block.index()] = true;
      for_each_access(tape_, from, [&](BlockId block, Access access) {
        changes[block.index()] = changes[block.index()] || access == Access::kWrite;
      });
    }
    OpId read;
    std::size_t next = 0;
    for (std::size_t i = 0; i < out_.graph.ops.size(); ++i) {
      Op& op = out_.graph.ops[i];
      const TapeOp& from = tape_.op(out_.tape_op[i]);
      if (next < tape_.reads.size() && tape_.reads[next] == out_.tape_op[i]) {
        read = OpId(i);
        ++next;
        continue;
      }
      bool waits =
          std::any_of(op.writes.begin(), op.writes.end(), [&](BufferId b) { return out_.graph.buffer(b).resident; });
      waits = waits || from.handle.hasTag(at::Tag::dynamic_output_shape);  // its shape has been asked for
      for (const TapeOpId member : members_of(OpId(i))) {
        waits = waits || checks_values(tape_.op(member).handle, /*backward=*/false);
        for_each_access(tape_, tape_.op(member),
                        [&](BlockId block, Access) { waits = waits || changes[block.index()]; });
      }
      if (!waits || !read.valid() || std::find(op.after.begin(), op.after.end(), read) != op.after.end()) continue;
      op.after.insert(std::upper_bound(op.after.begin(), op.after.end(), read), read);
    }
  }

  std::vector<TapeOpId> members_of(OpId id) const {
    const int chain = out_.chain[id.index()], tile = out_.tile[id.index()];
    std::vector<TapeOpId> members;
    if (tile >= 0) {
      for (const TileMember& member : out_.tiles[static_cast<std::size_t>(tile)].members) members.push_back(member.op);
      return members;
    }
    if (chain < 0) return {out_.tape_op[id.index()]};
    for (const RowMember& member : out_.chains[static_cast<std::size_t>(chain)].members) members.push_back(member.op);
    return members;
  }

  bool looks_at_data(const Op& op) const {
    return std::any_of(op.reads.begin(), op.reads.end(), [&](BufferId b) {
      const Buffer& buffer = out_.graph.buffer(b);
      return !buffer.resident || buffer.kind == BufferKind::kInput;
    });
  }

  bool makes_use_of_step(const Op& op) const {
    const auto made = [&](BufferId b) { return !out_.graph.buffer(b).resident; };
    return std::any_of(op.reads.begin(), op.reads.end(), made) || std::any_of(op.writes.begin(), op.writes.end(), made);
  }

  static void add_once(std::vector<BufferId>& list, BufferId id) {
    if (id.valid() && std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  }

  const Tape& tape_;
  const LowerOptions& options_;
  std::vector<bool> on_the_side_;  // by block: side_statistics()
  std::vector<OpId> updater_;      // by block: the latest op that updates such statistics
  std::vector<int> chain_at_;      // by op of the tape: the chain that ends there, or -1
  std::vector<bool> within_chain_;
  std::vector<int> product_at_;  // by op of the tape, or -1
  std::vector<bool> within_tiles_;
  Lowered out_;
  UniqueNames names_;
};

}  // namespace

std::string kind_of(const TapeOp& op) {
  return is_compiled_kernel(op.handle) ? kernel_title(op.arguments[0]) : full_name(op.handle);
}

Lowered lower(const Tape& tape, const std::string& name, const LowerOptions& options) {
  return Lowering(tape, name, options).run();
}

}  // namespace stowage::runtime
