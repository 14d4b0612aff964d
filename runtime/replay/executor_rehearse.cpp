// Rehearsal: the planned step on the real tensors, put back as it goes.
//
//   resident p     … first write ████████████ last use │
//   beside            p saved    ──────────────────────│ p back
//   digest                                             │ of what the step would have left
//
// Only what is being changed at one moment is held twice, and in memory of the host: the device needs nothing beyond
// the plan. Whether there is enough is asked before anything changes, and that memory cannot fail as a file can, so
// nothing of the user's is ever lost.
#include <algorithm>
#include <map>

#include "runtime/replay/executor.h"

namespace stowage::runtime {

Executor::Rehearsal Executor::plan_rehearsal() const {
  std::map<BlockId, std::pair<std::size_t, std::size_t>> uses;  // written from, last used
  for (std::size_t s = 0; s < instructions_.size(); ++s) {
    for (const TapeOpId op : members_of(instructions_[s])) {
      for_each_access(*tape_, tape_->op(op), [&](BlockId block, Access access) {
        if (!tape_->blocks[block.index()].external) return;
        if (access == Access::kWrite) uses.try_emplace(block, s, s);
        if (const auto it = uses.find(block); it != uses.end()) it->second.second = s;
      });
    }
  }
  Rehearsal rehearsal;
  std::vector<HostRange> ranges;
  for (const BlockId block : mutated_) {
    if (away(block)) {
      rehearsal.saved.push_back({block, std::nullopt, {}});
      ranges.push_back({});
      continue;
    }
    const auto [from, last] = uses.at(block);
    const auto bytes = static_cast<std::int64_t>(storages_[block.index()].nbytes());
    rehearsal.saved.push_back({block, std::nullopt, {}});
    ranges.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(last) + 1, bytes, 0});
  }
  require_host_memory(place_in_host(ranges), 0);
  rehearsal.save_before.resize(instructions_.size());
  rehearsal.restore_after.resize(instructions_.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (away(rehearsal.saved[i].block)) continue;
    rehearsal.save_before[static_cast<std::size_t>(ranges[i].from)].push_back(i);
    rehearsal.restore_after[static_cast<std::size_t>(ranges[i].to) - 1].push_back(i);
  }
  rehearsal.digests.resize(ranges.size());
  return rehearsal;
}

void Executor::save_before(std::size_t index) {
  if (rehearsal_ == nullptr) return;
  for (const std::size_t i : rehearsal_->save_before[index]) save_resident(*rehearsal_, i);
}

void Executor::restore_after(std::size_t index) {
  if (rehearsal_ == nullptr) return;
  for (const std::size_t i : rehearsal_->restore_after[index]) restore_resident(*rehearsal_, i);
}

void Executor::save_resident(Rehearsal& rehearsal, std::size_t i) {
  Rehearsal::Saved& saved = rehearsal.saved[i];
  saved.content.emplace(storages_[saved.block.index()], Kept::kOnce);
}

void Executor::restore_resident(Rehearsal& rehearsal, std::size_t i) {
  Rehearsal::Saved& saved = rehearsal.saved[i];
  c10::Storage& storage = storages_[saved.block.index()];
  rehearsal.digests[i] = digest(storage);
  saved.content->put_back(storage);
  saved.content.reset();
}

std::pair<RunStats, StateDigest> Executor::rehearse(const std::vector<at::Tensor>& inputs,
                                                    const std::vector<c10::Storage>& host_written, bool learn) {
  bind_inputs(inputs);
  Rehearsal rehearsal = plan_rehearsal();
  struct BackAtEnd {
    Executor& executor;
    GeneratorState generator = GeneratorState::current(executor.tape_->generators);
    ~BackAtEnd() {
      executor.set_generators(generator);
      executor.rehearsal_ = nullptr;
    }
  } back{*this};
  rehearsal_ = &rehearsal;
  const RunStats stats = run(inputs, {.learn = learn, .time_ops = learn});
  for (std::size_t i = 0; i < rehearsal.saved.size(); ++i) {
    const Rehearsal::Saved& saved = rehearsal.saved[i];
    if (!away(saved.block)) continue;
    const c10::Storage& home = resident(saved.block);
    const void* left = saved.shadow.get() != nullptr ? saved.shadow.get() : home.data();
    rehearsal.digests[i] = digest(left, static_cast<std::int64_t>(home.nbytes()), home.device());
  }
  for (const c10::Storage& storage : host_written) {
    rehearsal.digests.push_back(digest(storage));
  }
  return {stats, {std::move(rehearsal.digests), generators_left()}};
}

GeneratorState Executor::generators_left() const { return generators_now().only(tape_->moved); }

StateDigest Executor::state(const std::vector<at::Tensor>& inputs,
                            const std::vector<c10::Storage>& host_written) const {
  StateDigest now{{}, generators_left()};
  const auto add = [&](const c10::Storage& storage) { now.storages.push_back(digest(storage)); };
  for (const BlockId block : mutated_) {
    const Block& b = tape_->blocks[block.index()];
    add(b.input >= 0 ? storage_of(b, inputs) : resident(block));
  }
  for (const c10::Storage& storage : host_written) add(storage);
  return now;
}

}  // namespace stowage::runtime
