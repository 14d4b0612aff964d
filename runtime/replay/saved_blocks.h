// What external blocks held before the first op that writes them, kept on the host, so that a run can be taken back.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/memory/bytes.h"
#include "runtime/record/tape.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {

class SavedBlocks {
 public:
  explicit SavedBlocks(Kept often) : often_(often) {}

  // Before `op` runs. storage(block) is where the block lies now.
  template <class StorageOf>
  void add_written(const Tape& tape, const TapeOp& op, StorageOf storage) {
    for_each_access(tape, op, [&](BlockId block, Access access) {
      if (access != Access::kWrite || !tape.blocks[block.index()].external) return;
      for (const auto& [known, content] : contents_) {
        if (known == block) return;
      }
      add(block, storage(block));
    });
  }
  // Of a block that is not there yet.
  void add(BlockId block, const c10::Storage& from) {
    const AtHand there(from);
    contents_.emplace_back(block, KeptBytes(from, often_));
  }
  void clear() { contents_.clear(); }
  [[nodiscard]] bool has(BlockId block) const {
    return std::ranges::any_of(contents_, [&](const auto& saved) { return saved.first == block; });
  }

  // Puts all back, and forgets it.
  template <class StorageOf>
  void restore(StorageOf storage) {
    for (const auto& [block, content] : contents_) {
      const c10::Storage& into = storage(block);
      const AtHand there(into);
      content.put_back(into);
    }
    contents_.clear();
  }

 private:
  Kept often_;
  std::vector<std::pair<BlockId, KeptBytes>> contents_;
};

// Goes over ops in the order in which they will run, and tells which of them must save what they write, so that an
// error can be taken back: all up to the last one whose data can make it raise; after that, as long as it is little.
class FirstWrites {
 public:
  explicit FirstWrites(const Tape& tape) : tape_(tape), written_(tape.blocks.size(), false) {}

  // The external blocks that `op` writes first. `again`: it has run before, with the same data.
  std::vector<BlockId> next(const TapeOp& op, bool again) {
    std::vector<BlockId> first;
    for_each_access(tape_, op, [&](BlockId id, Access access) {
      const Block& block = tape_.blocks[id.index()];
      if (access != Access::kWrite || written_[id.index()] || !block.external) return;
      written_[id.index()] = true;
      if (block.kind != BufferKind::kModuleBuffer) bytes_ += block.bytes;  // running statistics are always little
      first.push_back(id);
    });
    ++ops_;
    const bool checks = op.role == TapeOp::Role::kKernel && checks_values(op.handle, op.backward);
    if (checks && (!again || is_custom(op.handle))) {
      save_until_ = ops_;
      bytes_ = 0;
    } else if (save_until_ + 1 == ops_ && bytes_ <= kLittleBytes) {
      save_until_ = ops_;
    }
    return first;
  }
  void skip() {
    if (save_until_ == ops_++) save_until_ = ops_;
  }
  // So many ops, from the first one on.
  [[nodiscard]] std::size_t save_until() const { return save_until_; }

 private:
  static constexpr std::int64_t kLittleBytes = 64 << 10;  // copied in the time of one or two small kernels

  const Tape& tape_;
  std::vector<bool> written_;
  std::int64_t bytes_ = 0;  // written first since the last op that checks
  std::size_t ops_ = 0;
  std::size_t save_until_ = 0;
};

}  // namespace stowage::runtime
