// Running tiles (tiles.h) in the arena.
//
//   script     output 0 | output 1 | ... | pool       what a tile takes lies in the pool, one after the other tile at one address
#include "runtime/memory/pool.h"
#include "runtime/replay/executor.h"
#include "runtime/replay/tile_run.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

namespace {

constexpr std::int64_t kRoomShare = 4;  // a pool that was too small: so much of what was wanted is added

}  // namespace

// The outputs get their places from the caller.
void Executor::write_tiles_script(const Tiles& tiles, std::int32_t step,
                                  const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch) {
  for (const TileOutput& output : tiles.outputs)
    allocations_.push_back({tape_->blocks[output.block.index()].bytes, PlannedAllocation::kUnplanned});
  allocations_.push_back({tiles.pool_bytes, scratch.at({step, 0})});
}

void Executor::call_tiles(const Instruction& instruction) {
  const Tiles& tiles = lowered_.tiles[static_cast<std::size_t>(instruction.tile)];
  c10::Allocator* const allocator = c10::GetAllocator(tape_->device.type());
  std::vector<c10::Storage> outputs;
  for (const TileOutput& output : tiles.outputs) {
    const auto bytes = static_cast<std::size_t>(tape_->blocks[output.block.index()].bytes);
    outputs.emplace_back(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                         /*resizable=*/true);
  }
  const c10::DataPtr memory = allocator->allocate(static_cast<std::size_t>(tiles.pool_bytes));
  Pool pool(memory.get(), tiles.pool_bytes);
  {
    struct UsePool {
      AllocationScript& script;
      ~UsePool() { script.use_pool(nullptr); }
    } const used{script_};
    script_.use_pool(&pool);
    TileRun(*tape_, tiles,
            {[&](SlotId slot) { return tensor({slot, false}); },
             [&](BlockId block) -> const c10::Storage& { return storages_[block.index()]; }, &pool})
        .run(outputs);
  }
  if (pool.wanted() > tiles.pool_bytes && rehearsal_ != nullptr) {
    tape_->op(tiles.named).tile_pool_bytes = pool.wanted() + pool.wanted() / kRoomShare;
    learned_something_ = true;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Block& block = tape_->blocks[tiles.outputs[i].block.index()];
    storages_[tiles.outputs[i].block.index()] = outputs[i];
    tensors_[block.owner.index()] = make_alias(outputs[i], tape_->slots[block.owner.index()].meta);
  }
}

}  // namespace stowage::runtime
