// Swaps in the executor, and what becomes of a step when one fails.
//
//   swap_out   copy starts … finished: the placement ends      fails: the buffer waits in memory taken for it (rescued), step goes on
//   swap_in    placement begins, copy starts … finished        fails: read once more; fails again: the step cannot go on
//
// A step that cannot go on is taken back where that can be done (executor_undo.cpp); else the error says that it is
// half done.
#include <chrono>
#include <cstring>

#include "runtime/replay/executor.h"
#include "stowage/error.h"

namespace stowage::runtime {

void Executor::reserve() {
  reserve_host();
  arena_->reserve(tape_->device, plan_.arena_bytes);
}

void Executor::reserve_host() {
  if (swaps_.host_bytes > 0) host_.store->reserve(swaps_.host_bytes);
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
    script_.vouch(storage.data(), allocations_[instruction.script_from].offset);
    if (rescued) return rescued->put_back(storage);
  } else {
    rescued.reset();
  }
  tickets_[instruction.swap] = link_of(swap).start({swap.direction, storage.mutable_data(), host_place(swap), bytes});
}

void Executor::finish_swap(std::size_t index, RunStats& stats) {
  const Swap& swap = swaps_.swaps[index];
  if (swap.direction == Copy::Direction::kIn && rescued_[swap.buffer.index()]) return;
  const auto start = std::chrono::steady_clock::now();
  const std::string failure = link_of(swap).finish(tickets_[index]);
  stats.stall_ns +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  if (failure.empty()) return;
  if (swap.direction == Copy::Direction::kOut) return swap.home ? retry_home(swap) : rescue(swap, stats);
  const std::int64_t bytes = lowered_.graph.buffer(swap.buffer).bytes;
  try {
    HostStore& store = swap.home ? static_cast<HostStore&>(*host_.homes) : *host_.store;
    store.read(host_place(swap), storages_[lowered_.block[swap.buffer.index()].index()].mutable_data(), bytes);
  } catch (const Error&) {
    fail_swap(swap, failure);
  }
}

// Of a resident that is away: the address of the user's tensor; while a step is rehearsed, of a shadow from the first write
// on, so that nothing of the user's changes.
std::int64_t Executor::host_place(const Swap& swap) {
  if (!swap.home) return swap.host_offset;
  const BlockId block = lowered_.block[swap.buffer.index()];
  const void* place = resident(block).data();
  if (rehearsal_ != nullptr) {
    for (Rehearsal::Saved& saved : rehearsal_->saved) {
      if (saved.block != block) continue;
      if (swap.direction == Copy::Direction::kOut && saved.shadow.get() == nullptr)
        saved.shadow = host_.homes->region(lowered_.graph.buffer(swap.buffer).bytes);
      if (saved.shadow.get() != nullptr) place = saved.shadow.get();
    }
  }
  return reinterpret_cast<std::int64_t>(place);
}

// A resident that could not be written back is tried once more; then it comes back into memory, and stays there.
void Executor::retry_home(const Swap& swap) {
  const BlockId block = lowered_.block[swap.buffer.index()];
  const std::int64_t bytes = lowered_.graph.buffer(swap.buffer).bytes;
  const void* content = storages_[block.index()].data();
  try {
    return host_.homes->write(host_place(swap), content, bytes);
  } catch (const Error&) {
    if (rehearsal_ != nullptr) throw;
  }
  c10::DataPtr memory = c10::GetAllocator(c10::DeviceType::CPU)->allocate(static_cast<std::size_t>(bytes));
  std::memcpy(memory.get(), content, static_cast<std::size_t>(bytes));
  resident(block).unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

void Executor::abandon_copies() {
  if (!swaps_.swaps.empty()) host_.link->abandon();
  if (!plan_.away.empty()) host_.home_link->abandon();
}

void Executor::rescue(const Swap& swap, RunStats& stats) {
  const c10::Storage& storage = storages_[lowered_.block[swap.buffer.index()].index()];
  rescued_[swap.buffer.index()].emplace(storage, Kept::kInEachStep);
  stats.rescued_bytes += lowered_.graph.buffer(swap.buffer).bytes;
}

void Executor::fail_swap(const Swap& swap, const std::string& why) {
  const std::string back = can_take_back_ ? "; model, optimizer and generator are as before the step" : "";
  throw Error("buffer '" + lowered_.graph.buffer(swap.buffer).name + "' cannot be read back: " + why + back);
}

}  // namespace stowage::runtime
