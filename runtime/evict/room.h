// Keeping within the limit: the allocator asks for room, and values are let go until there is.
//
//   allocate(n) would pass the limit ──► make_room(n) ──► ghosts, then whom the keeper names ──► let_go(v)
//
//   storage ─► block            let_go(v, swap)       storage ─► DataPtr(null, v), reads throw
//                │ mark ─► v    ───────────────►      v.host ─► copy               block: free
//
// No kernel runs here, so this can happen inside the allocator, in the middle of any op: a drop is a free, a swap a
// copy. That is why the limit is hard. What ops under way use stays (running.h).
#pragma once

#include <string>

#include "runtime/evict/graph.h"
#include "runtime/memory/allocator.h"

namespace stowage::runtime::evict {

class Room final : public Guardian {
 public:
  Room(State& state, HostCopies& copies, Awake& awake, Graph& graph)
      : state_(state), copies_(copies), awake_(awake), graph_(graph) {}

  // Of the allocator.
  void make_room(std::int64_t bytes) override;
  bool spare(std::int64_t bytes) override;
  bool block_dies(void* data, void*) noexcept override { return graph_.block_dies(data); }

  // Under the lock. What is live is within the limit, or this throws.
  void shrink();
  // False when it cannot go after all; then it is no candidate any more.
  bool let_go(Value& value, How how);
  // What keeps `bytes` more from fitting, the largest values first.
  [[nodiscard]] std::string explain(std::int64_t bytes) const;

 private:
  bool let_go_of_one();

  State& state_;
  HostCopies& copies_;
  Awake& awake_;
  Graph& graph_;
};

// Nanoseconds inside ops that are not theirs: the calling thread has spent them making room, or in interludes.
std::int64_t waited_ns();
void set_waited_ns(std::int64_t ns);

}  // namespace stowage::runtime::evict
