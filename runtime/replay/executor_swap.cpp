// Swaps in the executor, and what becomes of a step when one fails.
//
//   swap_out   copy starts … finished: the placement ends      fails: the buffer waits in memory taken for it (rescued), step goes on
//   swap_in    placement begins, copy starts … finished        fails: read once more; fails again: the step cannot go on
//
// A step that cannot go on is taken back where that can be done (executor_undo.cpp); else the error says that it is
// half done.
#include <chrono>

#include "runtime/replay/executor.h"
#include "stowage/error.h"

namespace stowage::runtime {

void Executor::reserve() {
  if (swaps_.host_bytes > 0) host_.store->reserve(swaps_.host_bytes);
  arena_->reserve(tape_->device, plan_.arena_bytes);
}

void Executor::start_swap(const Instruction& instruction) {
  const Swap& swap = swaps_.swaps[instruction.swap];
  const std::int64_t bytes = lowered_.graph.buffer(swap.buffer).bytes;
  c10::Storage& storage = storages_[lowered_.block[swap.buffer.index()].index()];
  std::optional<KeptBytes>& rescued = rescued_[swap.buffer.index()];
  if (swap.direction == Copy::Direction::kIn) {
    script_.begin_op(allocations_.data() + instruction.script_from, instruction.script_to - instruction.script_from);
    c10::Allocator* allocator = c10::GetAllocator(tape_->device.type());
    const auto size = static_cast<std::size_t>(bytes);
    storage =
        c10::Storage(c10::Storage::use_byte_size_t(), size, allocator->allocate(size), allocator, /*resizable=*/true);
    script_.end_op(/*takes_all=*/true);
    if (rescued) return rescued->put_back(storage);
  } else {
    rescued.reset();
  }
  tickets_[instruction.swap] = host_.link->start({swap.direction, storage.mutable_data(), swap.host_offset, bytes});
}

void Executor::finish_swap(std::size_t index, RunStats& stats) {
  const Swap& swap = swaps_.swaps[index];
  if (swap.direction == Copy::Direction::kIn && rescued_[swap.buffer.index()]) return;
  const auto start = std::chrono::steady_clock::now();
  const std::string failure = host_.link->finish(tickets_[index]);
  stats.stall_ns +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  if (failure.empty()) return;
  if (swap.direction == Copy::Direction::kOut) return rescue(swap, stats);
  const std::int64_t bytes = lowered_.graph.buffer(swap.buffer).bytes;
  try {
    host_.store->read(swap.host_offset, storages_[lowered_.block[swap.buffer.index()].index()].mutable_data(), bytes);
  } catch (const Error&) {
    fail_swap(swap, failure);
  }
}

void Executor::rescue(const Swap& swap, RunStats& stats) {
  const c10::Storage& storage = storages_[lowered_.block[swap.buffer.index()].index()];
  rescued_[swap.buffer.index()].emplace(storage);
  stats.rescued_bytes += lowered_.graph.buffer(swap.buffer).bytes;
}

void Executor::fail_swap(const Swap& swap, const std::string& why) {
  const std::string back = can_take_back_ ? "; model, optimizer and generator are as before the step" : "";
  throw Error("buffer '" + lowered_.graph.buffer(swap.buffer).name + "' cannot be read back: " + why + back);
}

}  // namespace stowage::runtime
