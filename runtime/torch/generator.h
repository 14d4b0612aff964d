// The default CPU generator's state, saved and restored without touching the dispatcher or the allocator.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stowage::runtime {

class GeneratorState {
 public:
  static GeneratorState current();
  void restore() const;
  // The same for a step: where it draws nothing (`draws`), what is there now may follow from this by draws, which are
  // other threads', and stays.
  void put_back(bool draws) const;
  // By draws alone, or by what other threads have put back: no Python of this thread has seeded or set it meanwhile.
  // The same state is none that follows. Both are of one thread.
  [[nodiscard]] bool follows(const GeneratorState& before) const;
  bool operator==(const GeneratorState& other) const;
  // Seeded, and nothing drawn since.
  [[nodiscard]] bool is_seed() const;
  // Another state for each number of draws, which no seed leads to: stands for the unknown state after them.
  [[nodiscard]] GeneratorState marked(std::size_t draws) const;

 private:
  explicit GeneratorState(const at::mt19937& engine) : engine_(engine) {}

  at::mt19937 engine_;
  std::uint64_t others_restored_ = 0;  // so far, as seen by the thread that took it
  std::optional<float> next_float_normal_;
  std::optional<double> next_double_normal_;
};

// Where a step's Python sets the generator: nowhere, to where it was after so many draws of the step (as a checkpoint
// does), or to a state that comes from outside, most often a seed.
struct GeneratorJump {
  int draws = -1;
  std::shared_ptr<const GeneratorState> state;

  // after_draws[i]: the state after i draws of the step.
  void make(const std::vector<std::optional<GeneratorState>>& after_draws) const;
  [[nodiscard]] bool moves() const { return draws >= 0 || state != nullptr; }
  bool operator==(const GeneratorJump& other) const;
  // The same but for the seed, which is a number of Python's.
  [[nodiscard]] bool same_but_seed(const GeneratorJump& other) const;
};

}  // namespace stowage::runtime
