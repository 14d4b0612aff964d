#include "runtime/record/ticks.h"

#include <algorithm>

namespace stowage::runtime {
namespace {

struct LastingAllocation {
  int position;
  std::int32_t tick;
  const void* address;
};

// A new tick starts when the op allocates after having freed:
//
//   events   +a +b -a +c -c          a: [0, 1)   c: [1, 2)   b lasts, born at 0
//   tick      0  0  0  1  1
std::vector<LastingAllocation> tell_ticks(const std::vector<AllocationEvent>& events, TapeOp& op) {
  std::vector<LastingAllocation> lasting;
  std::int32_t tick = 0;
  bool freed = false;
  for (const AllocationEvent& event : events) {
    if (!event.is_free) {
      tick += freed ? 1 : 0;
      freed = false;
      lasting.push_back({static_cast<int>(op.allocations.size()), tick, event.address});
      op.allocations.push_back(event.bytes);
      continue;
    }
    const auto it =
        std::find_if(lasting.begin(), lasting.end(), [&](const auto& a) { return a.address == event.address; });
    if (it == lasting.end()) continue;  // not of this op
    op.scratch.push_back({op.allocations[static_cast<std::size_t>(it->position)], it->tick, tick + 1});
    op.scratch_allocation.push_back(it->position);
    lasting.erase(it);
    freed = true;
  }
  op.ticks = tick + 1;
  return lasting;
}

}  // namespace

bool take_inside(Tape& tape, TapeOp& op, const std::vector<AllocationEvent>& events,
                 const std::vector<const void*>& data) {
  op.allocations.clear();
  op.scratch.clear();
  op.scratch_allocation.clear();
  const std::vector<LastingAllocation> lasting = tell_ticks(events, op);
  op.born.assign(op.creates.size(), 0);
  bool all_found = true;
  for (std::size_t i = 0; i < op.creates.size(); ++i) {
    Block& block = tape.blocks[op.creates[i].index()];
    const auto it = std::find_if(lasting.begin(), lasting.end(), [&](const auto& a) { return a.address == data[i]; });
    if (it == lasting.end()) {
      all_found &= tape.planned_bytes(block) == 0;
      block.allocation = -1;
      continue;
    }
    block.allocation = it->position;
    block.bytes = op.allocations[static_cast<std::size_t>(it->position)];
    op.born[i] = it->tick;
  }
  return all_found;
}

}  // namespace stowage::runtime
