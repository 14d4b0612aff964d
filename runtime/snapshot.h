// A copy of the state that a step changes, to run the step twice from the same start and compare the ends.
//
//   residents   start ──step──► A     exchange()   start ──step again──► B      same_as_now(): A == B ?
//   snapshot    start                              A
#pragma once

#include <c10/core/Storage.h>

#include <vector>

#include "runtime/generator.h"

namespace stowage::runtime {

class Snapshot {
 public:
  explicit Snapshot(std::vector<c10::Storage> storages);
  Snapshot(Snapshot&&) = default;
  Snapshot(const Snapshot&) = delete;

  // Puts the saved state back, and saves the one that was there. Storages and the generator.
  void exchange();

  // The residents hold, byte for byte, what is saved, and so does the generator.
  [[nodiscard]] bool same_as_now() const;

 private:
  std::vector<c10::Storage> storages_;
  std::vector<c10::DataPtr> contents_;  // from PyTorch's allocator, so that they are counted
  GeneratorState generator_;
};

}  // namespace stowage::runtime
