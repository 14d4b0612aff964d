// A limit that is far away costs nothing: once whole steps have stayed below 55 % of it, the hook is taken off the
// thread, and only the allocator goes on counting. It wakes the budget when live bytes pass 65 % of the limit.
//
//   limit  ────────────────────────────────────────────────
//   65 %   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ▲ awake: ops are seen again, tensors are known when they are next used
//   55 %   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─╱
//          ╱╲__╱╲__   asleep   ╱╲__╱╲__╱
//
// What was made meanwhile has no recipe, and stays until something touches it: at most 65 % of the limit.
#pragma once

#include "runtime/evict/restorer.h"

namespace stowage::runtime::evict {

class Sleep {
 public:
  Sleep(State& state, Awake& awake, Graph& graph, Restorer& restorer)
      : state_(state), awake_(awake), graph_(graph), restorer_(restorer) {}

  // After an optimizer's step, under the lock: whole steps, one after the other, have stayed far from the limit.
  [[nodiscard]] bool is_due();
  // What is away comes back before: nobody would bring it. It stays awake where that does not fit.
  void fall();

 private:
  [[nodiscard]] std::int64_t falling_bytes() const { return state_.options.limit_bytes / 100 * 55; }

  State& state_;
  Awake& awake_;
  Graph& graph_;
  Restorer& restorer_;
};

}  // namespace stowage::runtime::evict
