// Looking at each op of a run: what it has written (arena_watch.h), and digests of what it has made, to be compared
// with those of the same ops run plainly.
#include <algorithm>
#include <set>
#include <string>

#include "runtime/replay/executor.h"
#include "runtime/replay/plain_run.h"
#include "runtime/torch/op_facts.h"
#include "stowage/error.h"

namespace stowage::runtime {

std::vector<ArenaWatch::Range> Executor::own_ranges(std::size_t index) const {
  const Instruction& instruction = instructions_[index];
  std::vector<ArenaWatch::Range> own;
  const auto planned = [&](const Instruction& from) {
    for (std::size_t i = from.script_from; i < from.script_to; ++i) {
      const PlannedAllocation& a = allocations_[i];
      if (a.offset != PlannedAllocation::kUnplanned) own.emplace_back(a.offset, a.offset + a.bytes);
    }
  };
  planned(instruction);
  if (instruction.product >= 0) {  // it moves what is left of its operand within that
    const ProductOver& product = lowered_.products[static_cast<std::size_t>(instruction.product)];
    const c10::Storage& operand = storages_[product.operand.index()];
    const std::int64_t from = static_cast<const char*>(operand.data()) - arena_->base();
    own.emplace_back(from, from + static_cast<std::int64_t>(operand.nbytes()));
  }
  if (instruction.op.valid()) {
    for_each_access(*tape_, tape_->op(instruction.op), [&](BlockId block, Access access) {
      const c10::Storage& storage = storages_[block.index()];
      const bool outside = tape_->blocks[block.index()].external && !away(block);
      if (access != Access::kWrite || outside || !storage) return;
      const std::int64_t from = static_cast<const char*>(storage.data()) - arena_->base();
      if (from >= 0 && from < arena_->bytes())
        own.emplace_back(from, from + static_cast<std::int64_t>(storage.nbytes()));
    });
  }
  for (std::size_t i = 0; i <= index; ++i) {  // copies that are under way into the arena
    const Instruction& start = instructions_[i];
    if (start.op.valid() || swaps_.swaps[start.swap].direction != Copy::Direction::kIn) continue;
    if (static_cast<std::size_t>(swaps_.swaps[start.swap].until) > index) planned(start);
  }
  return own;
}

void Executor::look_around(std::size_t index) {
  const std::int64_t at = watch_->look(own_ranges(index));
  if (at < 0) return;
  const Instruction& instruction = instructions_[index];
  std::string what = "byte " + std::to_string(at) + " of the arena, where nothing lies";
  for (std::size_t b = 0; b < storages_.size(); ++b) {
    if (!storages_[b] || tape_->blocks[b].external) continue;
    const std::int64_t from = static_cast<const char*>(storages_[b].data()) - arena_->base();
    if (from <= at && at < from + static_cast<std::int64_t>(storages_[b].nbytes())) {
      what =
          "'" + lowered_.graph.buffer(lowered_.buffer[b]).name + "', of which it is byte " + std::to_string(at - from);
    }
  }
  const std::string who =
      instruction.op.valid() ? name_with_line(*tape_, tape_->op(instruction.op)) : std::string("a copy from the host");
  throw Error(who + " has written outside its own memory: " + what);
}

void Executor::poison_dead(const std::vector<ArenaWatch::Range>& ranges) {
  for (const ArenaWatch::Range& range : ranges) {
    if (!script_.any_live(arena_->base() + range.first, arena_->base() + range.second)) watch_->poison(range);
  }
}

std::vector<TapeOpId> Executor::members_of(const Instruction& instruction) const {
  std::vector<TapeOpId> members;
  if (instruction.tile >= 0) {
    for (const TileMember& member : lowered_.tiles[static_cast<std::size_t>(instruction.tile)].members)
      members.push_back(member.op);
  } else if (instruction.chain >= 0) {
    for (const RowMember& member : lowered_.chains[static_cast<std::size_t>(instruction.chain)].members)
      members.push_back(member.op);
  } else if (instruction.op.valid()) {
    members.push_back(instruction.op);
  }
  return members;
}

std::set<std::string> Executor::made_again() const {
  std::set<std::string> kinds;
  for (const Instruction& instruction : instructions_) {
    if (!instruction.again) continue;
    for (const TapeOpId member : members_of(instruction)) kinds.insert(kind_of(tape_->op(member)));
  }
  return kinds;
}

// An op that is made again with other results is to blame only where what it reads is as it was the first time. What
// follows from other results is not known to be as in the program either:
//
//   A   B(A)   …   A'   B'(A')        A' differs: its kernel does not repeat its bits. B' differs, too, and says nothing
void Executor::note_results(const Instruction& instruction) {
  if (!instruction.op.valid()) return;
  if (instruction.tile >= 0) {  // nobody knows what these should have made
    if (looks_)
      for (const TileOutput& output : lowered_.tiles[static_cast<std::size_t>(instruction.tile)].outputs)
        doubtful_[output.block.index()] = instruction.again;
    return;
  }
  const TapeOp& op = tape_->op(instruction.op);
  std::vector<Digest> now = digests_of_results(*tape_, op, storages_);
  std::vector<Digest>& first = traced_[instruction.op.index()];
  const bool differs = instruction.again && now != first;
  if (differs && again_otherwise_.empty()) again_otherwise_ = name_with_line(*tape_, op);
  if (!instruction.again) first = std::move(now);
  if (!looks_) return;
  const std::vector<TapeOpId> members = members_of(instruction);
  bool on_doubtful = false;
  for (const TapeOpId member : members)
    for_each_access(*tape_, tape_->op(member),
                    [&](BlockId block, Access) { on_doubtful = on_doubtful || doubtful_[block.index()]; });
  if (differs && !on_doubtful && !ran_on_doubtful_[instruction.op.index()])
    for (const TapeOpId member : members) do_not_repeat_.insert(kind_of(tape_->op(member)));
  if (!instruction.again) ran_on_doubtful_[instruction.op.index()] = on_doubtful;
  for (const BlockId block : op.creates) doubtful_[block.index()] = on_doubtful || differs;
  for_each_access(*tape_, op, [&](BlockId block, Access access) {
    if (access == Access::kWrite) doubtful_[block.index()] = on_doubtful || differs;
  });
}

}  // namespace stowage::runtime
