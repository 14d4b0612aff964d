// Running a recipe: the op once more, below autograd and autocast, on operands rebuilt from what the recipe remembers.
//
//   recipe of v1: relu_(v0)      v0 must stay what it is, so an operand that is written gets a copy of v0's bytes (or v0's own block,
//                                when nobody else wants the ghost); the copy becomes v1
//
// recompute.cpp: the whole, and its results. operands.cpp: storages for its operands. rerun.cpp: the call itself, as it
// ran the first time. The kernel runs under `restoring` alone.
#pragma once

#include <ATen/core/stack.h>

#include <vector>

#include "runtime/evict/room.h"

namespace stowage::runtime::evict {

class Restorer;

class Recompute {
 public:
  Recompute(State& state, HostCopies& copies, Graph& graph, Room& room, Restorer& restorer)
      : state_(state), copies_(copies), graph_(graph), room_(room), restorer_(restorer) {}

  // Its runs are counted anew.
  void new_access() { runs_left_ = kMostRuns; }
  // The value is there, or on the host, when this returns.
  void run(Value& value, int depth);

 private:
  static constexpr int kDeepest = 400;
  static constexpr std::int64_t kMostRuns = 3000;

  std::vector<StoragePtr> storages_for(const Recipe& recipe, const Values& operands, Values& read);
  StoragePtr storage_with(Value& value, bool to_be_written, Values& read);
  static void end_reading(Values& read);
  void take_results(Recipe& recipe, const torch::jit::Stack& stack, const std::vector<StoragePtr>& storages,
                    Value& wanted, std::int64_t took_ns);
  void keep_on_host(Value& value, const void* data);

  State& state_;
  HostCopies& copies_;
  Graph& graph_;
  Room& room_;
  Restorer& restorer_;
  std::int64_t runs_left_ = 0;  // for the access under way
};

// The arguments of the call, from tensors over the storages.
torch::jit::Stack stack_for(const Recipe& recipe, const std::vector<StoragePtr>& storages);
// Leaves the results on the stack.
void rerun(const Recipe& recipe, torch::jit::Stack& stack, bool rewind_generator);

}  // namespace stowage::runtime::evict
