// What an update has overwritten so far: of each storage, the bytes from before its first write, on the host.
//
//   p.mul_ ── m.lerp_ ── p.addcdiv_ ──      save(p) ─► copy of p's storage        save(m) ─► copy of m's
//
// An entry ends with its storage: the address may be another's soon. Under the lock.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "runtime/evict/host_heap.h"
#include "runtime/evict/state.h"

namespace stowage::runtime::evict {

class UndoLog {
 public:
  struct Entry {
    void* host = nullptr;
    std::int64_t bytes = 0;
    at::Tensor small;  // whose death would not be noticed
  };

  UndoLog(State& state, HostHeap& heap) : state_(state), heap_(heap) {}

  void save(const at::Tensor& tensor);  // is about to be written
  void forget(c10::StorageImpl* storage);
  void forget_all();
  // Shows each entry to `back(storage, entry)`, which may take its `host`; then all are forgotten.
  template <class Back>
  void take_back(Back back) {
    for (auto& [storage, entry] : entries_) back(storage, entry);
    forget_all();
  }

 private:
  void let_go(Entry& entry);

  State& state_;
  HostHeap& heap_;
  std::unordered_map<c10::StorageImpl*, Entry> entries_;
};

}  // namespace stowage::runtime::evict
