// What external blocks held before the first op that writes them, kept on the host, so that a run can be taken back.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "runtime/tape.h"

namespace stowage::runtime {

class SavedBlocks {
 public:
  // Before `op` runs. storage(block) is where the block lies now.
  template <class StorageOf>
  void add_written(const Tape& tape, const TapeOp& op, StorageOf storage) {
    for_each_access(tape, op, [&](BlockId block, Access access) {
      if (access != Access::kWrite || !tape.blocks[block.index()].external) return;
      for (const auto& [known, content] : contents_) {
        if (known == block) return;
      }
      const c10::Storage& from = storage(block);
      const char* data = static_cast<const char*>(from.data());
      contents_.emplace_back(block, std::vector<char>(data, data + from.nbytes()));
    });
  }

  // Puts all back, and forgets it.
  template <class StorageOf>
  void restore(StorageOf storage) {
    for (const auto& [block, content] : contents_) {
      if (!content.empty()) std::memcpy(storage(block).mutable_data(), content.data(), content.size());
    }
    contents_.clear();
  }

 private:
  std::vector<std::pair<BlockId, std::vector<char>>> contents_;
};

}  // namespace stowage::runtime
