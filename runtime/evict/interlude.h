// The program's own code inside an op: hooks of saved tensors, which autograd calls where an op saves.
//
//   mul ──► Ops::run ──► autograd saves y ──► pack(y) ──► half ──► Ops::run        an interlude: its ops are seen
//              unseen from here on                 └────► y.numpy()                addresses that leave do so to it
//
// What it reads comes back, what it makes may leave, and what the outer op uses stays. The time that it takes is not the
// outer op's.
#pragma once

#include <cstdint>

#include "runtime/torch/hook.h"

namespace stowage::runtime::evict {

class Interlude {
 public:
  Interlude();
  ~Interlude();
  Interlude(const Interlude&) = delete;
  Interlude& operator=(const Interlude&) = delete;

  // On the calling thread.
  static bool under_way();

 private:
  SeenAgain seen_;
  int kernels_;
  std::int64_t start_ns_, waited_ns_;
};

}  // namespace stowage::runtime::evict
