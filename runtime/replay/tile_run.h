// Running tiles (tiles.h): all members on some rows, then on the next.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "runtime/memory/pool.h"
#include "runtime/replay/tiles.h"

namespace stowage::runtime {

class TileRun {
 public:
  struct Memory {
    std::function<at::Tensor(SlotId)> whole;
    std::function<const c10::Storage&(BlockId)> storage;
    Pool* pool = nullptr;  // which answers the allocations of this thread; may be none
  };
  TileRun(const Tape& tape, const Tiles& tiles, Memory memory)
      : tape_(tape), tiles_(tiles), memory_(std::move(memory)) {}

  // Into these, by output.
  void run(const std::vector<c10::Storage>& outputs);

 private:
  void push(const TileMember& member, std::int64_t row, std::int64_t count);
  at::Tensor operand(const TileOperand& operand, std::int64_t row, std::int64_t count);
  void take_results(const TileMember& member, std::int64_t row, std::int64_t count);
  void take_rows(const TileMember& member, std::int64_t row, std::int64_t count);
  void add_product(const TileMember& member, std::int64_t row, std::int64_t count);
  void write_sums(const TileMember& member);
  at::Tensor* output(BlockId block);

  const Tape& tape_;
  const Tiles& tiles_;
  Memory memory_;
  std::vector<at::Tensor> outputs_;
  std::map<BlockId, double> sums_;      // of single numbers
  std::map<BlockId, at::Tensor> made_;  // of this tile
  torch::jit::Stack stack_;
};

// Bytes of the pool that a tile takes, as far as the tape shows it.
std::int64_t tile_pool_bytes(const Tape& tape, const Tiles& tiles);

// Notes what an output as the tiles have made it differs by from that of the recorded kernels. False where that is more
// than roundings.
bool compare_tiles(const Tape& tape, const TileOutput& output, const c10::Storage& tiled, const c10::Storage& recorded,
                   TileError& error);

}  // namespace stowage::runtime
