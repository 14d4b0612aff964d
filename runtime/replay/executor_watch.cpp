// Looking at each op of a run: what it has written (arena_watch.h), and digests of what it has made, to be compared
// with those of the same ops run plainly.
#include <algorithm>

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

void Executor::note_results(const Instruction& instruction) {
  if (!instruction.op.valid() || instruction.tile >= 0) return;
  std::vector<Digest> now = digests_of_results(*tape_, tape_->op(instruction.op), storages_);
  std::vector<Digest>& first = traced_[instruction.op.index()];
  if (!instruction.again) {
    first = std::move(now);
  } else if (again_otherwise_.empty() && now != first) {
    again_otherwise_ = name_with_line(*tape_, tape_->op(instruction.op));
  }
}

}  // namespace stowage::runtime
