#include "rivals/caching_allocator.h"

#include <algorithm>

#include "graph/liveness.h"

namespace stowage::rivals {
namespace {

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr std::int64_t kRounding = 512;
constexpr std::int64_t kLargestSmall = kMiB;
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kLargeSegment = 20 * kMiB;
constexpr std::int64_t kOwnSegment = 10 * kMiB;  // from here on a request gets a segment of its own size
constexpr std::int64_t kSegmentRounding = 2 * kMiB;

constexpr std::int64_t rounded_up(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

std::int64_t segment_bytes(std::int64_t bytes) {
  if (bytes <= kLargestSmall) return kSmallSegment;
  return bytes < kOwnSegment ? kLargeSegment : rounded_up(bytes, kSegmentRounding);
}

// What one op takes (+) and gives back (-) while it runs, by tick; at one tick what goes comes first.
struct Event {
  std::int32_t tick;
  bool takes;
  std::size_t index;  // of creates, then of scratch
};

std::vector<Event> events_of(const Op& op) {
  std::vector<Event> events;
  for (std::size_t i = 0; i < op.creates.size(); ++i) events.push_back({born_tick(op, i), true, i});
  for (std::size_t i = 0; i < op.scratch.size(); ++i) {
    events.push_back({op.scratch[i].from, true, op.creates.size() + i});
    events.push_back({op.scratch[i].to, false, op.creates.size() + i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.tick, a.takes, a.index) < std::tie(b.tick, b.takes, b.index);
  });
  return events;
}

}  // namespace

CachingAllocator::Block CachingAllocator::allocate(std::int64_t bytes) {
  if (bytes == 0) return -1;
  bytes = rounded_up(bytes, kRounding);
  const bool small = bytes <= kLargestSmall;
  const auto found = pool(small).lower_bound({bytes, INT64_MIN, -1});
  Block block = -1;
  if (found == pool(small).end()) {
    block = new_segment(segment_bytes(bytes), small);
  } else {
    block = std::get<2>(*found);
    pool(small).erase(found);
  }
  const std::int64_t rest = part(block).bytes - bytes;
  if (small ? rest >= kRounding : rest > kLargestSmall) split(block, bytes);
  part(block).free = false;
  allocated_ += part(block).bytes;
  return block;
}

void CachingAllocator::release(Block block) {
  if (block < 0) return;
  allocated_ -= part(block).bytes;
  part(block).free = true;
  const auto take_out = [&](Block neighbour) {
    const Part& p = part(neighbour);
    pool(p.small).erase({p.bytes, p.address, neighbour});
  };
  if (const Block before = part(block).before; before >= 0 && part(before).free) {
    take_out(before);
    block = merge(before, block);
  }
  if (const Block behind = part(block).behind; behind >= 0 && part(behind).free) {
    take_out(behind);
    block = merge(block, behind);
  }
  pool(part(block).small).insert({part(block).bytes, part(block).address, block});
}

CachingAllocator::Block CachingAllocator::new_segment(std::int64_t bytes, bool small) {
  parts_.push_back({next_address_, bytes, -1, -1, small, true});
  next_address_ += bytes;
  reserved_ += bytes;
  return static_cast<Block>(parts_.size() - 1);
}

// The block keeps its first `bytes`; the rest becomes a free block behind it.
void CachingAllocator::split(Block block, std::int64_t bytes) {
  const auto rest = static_cast<Block>(parts_.size());
  const Part whole = part(block);
  parts_.push_back({whole.address + bytes, whole.bytes - bytes, block, whole.behind, whole.small, true});
  if (whole.behind >= 0) part(whole.behind).before = rest;
  part(block).behind = rest;
  part(block).bytes = bytes;
  pool(whole.small).insert({whole.bytes - bytes, whole.address + bytes, rest});
}

CachingAllocator::Block CachingAllocator::merge(Block left, Block right) {
  part(left).bytes += part(right).bytes;
  part(left).behind = part(right).behind;
  if (part(right).behind >= 0) part(part(right).behind).before = left;
  return left;
}

AllocatorPeaks caching_allocator_peaks(const Graph& graph, std::span<const OpId> order) {
  const IdVector<BufferId, Lifetime> live = lifetimes(graph, order);
  std::vector<std::vector<BufferId>> freed(order.size() + 1);  // by the step before which they are freed
  for (const BufferId b : live.ids())
    if (!graph.buffer(b).resident) freed[static_cast<std::size_t>(live[b].to)].push_back(b);
  CachingAllocator allocator;
  AllocatorPeaks peaks;
  std::vector<CachingAllocator::Block> block(graph.buffers.size(), -1);
  for (std::size_t step = 0; step < order.size(); ++step) {
    const Op& op = graph.op(order[step]);
    std::vector<CachingAllocator::Block> scratch(op.scratch.size(), -1);
    for (const Event& event : events_of(op)) {
      const bool created = event.index < op.creates.size();
      CachingAllocator::Block& held =
          created ? block[op.creates[event.index].index()] : scratch[event.index - op.creates.size()];
      if (event.takes) {
        held = allocator.allocate(created ? graph.buffer(op.creates[event.index]).bytes
                                          : op.scratch[event.index - op.creates.size()].bytes);
      } else {
        allocator.release(held);
      }
      peaks.allocated_bytes = std::max(peaks.allocated_bytes, allocator.allocated_bytes());
    }
    for (const BufferId b : freed[step + 1]) allocator.release(block[b.index()]);
  }
  peaks.reserved_bytes = allocator.reserved_bytes();
  return peaks;
}

}  // namespace stowage::rivals
