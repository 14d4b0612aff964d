// Runs recorded ops in program order, with memory from the allocator as eager takes it: no plan, no Python.
//
//   tape      op 0   op 1   op 2   op 3 | op 4 ...
//   run(4)    ████   ████   ████   ████ |              a block lives from the op that makes it to its last use before `to`,
//                                                      or goes to the shell storage that Python still holds
//
// Two need it: a call whose Python left the tape half-way, so that all before that point must happen; and the
// rehearsal, which compares the planned step with the same ops run plainly.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/record/tape.h"
#include "runtime/replay/digest.h"
#include "runtime/replay/tiles.h"
#include "runtime/torch/generator.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

class PlainRun {
 public:
  // `inputs` by argument number. Both must outlive this.
  PlainRun(const Tape& tape, const std::vector<at::Tensor>& inputs);

  // Runs the kernels among ops [0, to). `shells` by block: where something beside it holds such a storage, that gets
  // the block's memory, or a copy of its content (`copies`: memory must not change its owner). A kernel's exception
  // passes through; residents, inputs and generator are then as before, where its data made it raise (saved_blocks.h).
  void run(std::int32_t to, Shells& shells, bool copies);

  // Digests of the results, by op, go there; of those ops alone where `only` is not empty.
  void trace(std::vector<std::vector<Digest>>& into, std::vector<bool> only = {}) {
    traced_ = &into;
    only_ = std::move(only);
  }

  // Beside the recorded kernels these run, and what they make counts; `error` is what it differs by. All must outlive
  // this.
  void replace(const std::vector<Tiles>& tiles, TileError& error);

  // Runs one op and leaves its results on the stack. What it reads must have been made by earlier calls, or be
  // external.
  void call(const TapeOp& op, torch::jit::Stack& stack);
  // The same where it is a kernel, with the generator where the recorded step had it.
  void run_op(std::int32_t index, torch::jit::Stack& stack);
  // Which blocks ops [0, to) use last, by op.
  [[nodiscard]] std::vector<std::vector<BlockId>> last_uses(std::int32_t to) const;
  // Some input is a slice of a larger tensor. A budget's block holds that as long as the run lives.
  static bool any_part(const Tape& tape, const std::vector<at::Tensor>& inputs);
  [[nodiscard]] c10::Storage& storage(BlockId block) { return storages_[block.index()]; }
  // The generator after so many draws, which have happened.
  [[nodiscard]] const GeneratorState& after_draws(std::size_t draws) const { return *states_[draws]; }
  // As it is now.
  at::Tensor tensor(SlotId slot);

 private:
  class TakenBack;
  void run_tiles_at(std::int32_t index);
  void take_tiles(const TapeOp& op);
  void take_tiled(BlockId block);
  void push_arguments(const TapeOp& op, torch::jit::Stack& stack);
  void keep_results(const TapeOp& op, const torch::jit::Stack& stack);
  void hand_over(Shells& shells, bool copies);

  const Tape& tape_;
  std::vector<std::vector<Digest>>* traced_ = nullptr;
  std::vector<bool> only_;
  std::vector<c10::Storage> storages_;                 // by block
  std::vector<std::unique_ptr<AtHand>> at_hand_;       // of which some are a part, which a budget does not know
  std::vector<std::optional<GeneratorState>> states_;  // by draws
  const std::vector<Tiles>* tiles_ = nullptr;
  TileError* error_ = nullptr;
  std::vector<const TileOutput*> tile_output_;  // by block
  std::vector<c10::Storage> tiled_;             // by block
};

// Digests of what the op has created and written, as it lies now.
std::vector<Digest> digests_of_results(const Tape& tape, const TapeOp& op, const std::vector<c10::Storage>& storages);

}  // namespace stowage::runtime
