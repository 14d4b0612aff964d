// Reads and writes past the dispatcher: numpy(), data_ptr(), DLPack, a kernel of the user's own.
//
//   evicted      throws; restore(tensor) or hold(tensor) bring it back before
//   resident     is watched (block.h): whoever takes its address may keep it, so it never leaves again
//
// And what tests and error messages ask of one tensor.
#pragma once

#include <string>
#include <unordered_map>

#include "runtime/evict/restorer.h"

namespace stowage::runtime::evict {

class Outside {
 public:
  Outside(State& state, Graph& graph, Room& room, Restorer& restorer)
      : state_(state), graph_(graph), room_(room), restorer_(restorer) {}

  // The tensor's bytes are there when this returns, and stay: for good, or until release() of the number returned (0:
  // nothing need be done).
  void restore(const at::Tensor& tensor);
  std::int64_t hold(const at::Tensor& tensor);
  std::int64_t hold(c10::StorageImpl* storage);  // of which nothing is away unless it is known
  void release(std::int64_t number);
  void release_all() { holds_.clear(); }  // under the lock: the block ends, and what is there stays

  // Somebody has taken the address of a storage.
  void touched(c10::StorageImpl* storage);

  // Lets go of a tensor now, if that is possible; for tests. Returns describe().
  std::string evict(const at::Tensor& tensor, How how);
  // "kept", "recomputable", "resident", "fetching", "swapped", "dropped", "gone" or "unknown".
  [[nodiscard]] std::string describe(const at::Tensor& tensor);

 private:
  Values brought(const at::Tensor& tensor, bool small_too);
  Values brought(Values one);
  std::int64_t held(Values one);

  State& state_;
  Graph& graph_;
  Room& room_;
  Restorer& restorer_;
  std::unordered_map<std::int64_t, Values> holds_;  // by number: pinned
  std::int64_t last_hold_ = 0;
};

}  // namespace stowage::runtime::evict
