// Copies beside the kernels: after each op the keeper advises what to copy out early, what to let go, and what to fetch
// before it is used.
//
//   op ──► op ──► op ──► op          out lane   ▒▒ a ▒▒          in lane   ▒▒▒ b ▒▒▒
//       ▲      ▲                                 └ let go at once, when room is short   └ there when its op comes
//       └ advice, and a look at which copies are complete
//
// All under the lock, in which no copy is waited for but by finish().
#pragma once

#include "runtime/evict/room.h"

namespace stowage::runtime::evict {

class Ahead {
 public:
  Ahead(State& state, HostCopies& copies, Graph& graph, Room& room)
      : state_(state), copies_(copies), graph_(graph), room_(room) {}

  void follow_advice();
  // The fetch of it ends: it is there, or, where its storage takes no block now, on the host as before.
  void finish(Value& value, bool waited_for);
  void finish_all();

 private:
  static constexpr int kMostAdvice = 16;  // after one op

  bool start_fetch(Value& value);
  void poll();

  State& state_;
  HostCopies& copies_;
  Graph& graph_;
  Room& room_;
};

}  // namespace stowage::runtime::evict
