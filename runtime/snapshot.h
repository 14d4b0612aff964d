// A copy of the state that a step changes, to run the step twice from the same start and compare the ends.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/generator.h"

namespace stowage::runtime {

class Snapshot {
 public:
  explicit Snapshot(std::vector<c10::Storage> storages);

  void restore() const;  // storages and the generator

  // Digest of each storage's bytes as they are now, and of the generator's state, in a fixed order.
  [[nodiscard]] std::vector<std::uint64_t> digests() const;

 private:
  std::vector<c10::Storage> storages_;
  std::vector<std::string> contents_;
  GeneratorState generator_;
};

}  // namespace stowage::runtime
