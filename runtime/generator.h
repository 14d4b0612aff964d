// The default CPU generator's state, saved and restored without touching the dispatcher or the allocator.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <optional>

namespace stowage::runtime {

class GeneratorState {
 public:
  static GeneratorState current();
  void restore() const;
  bool operator==(const GeneratorState& other) const;

 private:
  explicit GeneratorState(const at::mt19937& engine) : engine_(engine) {}

  at::mt19937 engine_;
  std::optional<float> next_float_normal_;
  std::optional<double> next_double_normal_;
};

}  // namespace stowage::runtime
