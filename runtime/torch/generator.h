// The default generators' state, saved and restored without touching the dispatcher or the allocator: the CPU's, and the
// accelerator's, once steps are planned there.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stowage::runtime {

// From now on the state is that of this device's default generator, too: Philox, which is a seed and how far it has come.
// One device in a process.
void watch_generator(c10::Device device);
// Why draws on the device cannot be repeated; "" where they can.
std::string why_not_repeatable(c10::Device device);

// The state has two parts, which Python may move each by itself: torch.set_rng_state() sets the CPU's alone,
// torch.manual_seed() seeds both.
enum class GeneratorPart : std::uint8_t { kHost, kDevice };
constexpr std::array kGeneratorParts = {GeneratorPart::kHost, GeneratorPart::kDevice};

// Something for each part.
template <typename T>
class OfGeneratorParts {
 public:
  [[nodiscard]] T& operator[](GeneratorPart part) { return parts_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] const T& operator[](GeneratorPart part) const { return parts_[static_cast<std::size_t>(part)]; }

 private:
  std::array<T, kGeneratorParts.size()> parts_{};
};

// How often this thread has set the default generators, and how often its Python has.
struct OwnGeneratorSets {
  OfGeneratorParts<std::uint64_t> all, by_python;
};
// A thread that works for another one takes that one's, and hands them back.
OwnGeneratorSets& own_generator_sets();

// Python of this thread seeds this generator, or sets it; any generator, a default one or another.
void note_set_by_python(const c10::GeneratorImpl* generator);

class GeneratorState {
 public:
  static GeneratorState current();
  void restore() const;
  void restore(GeneratorPart part) const;
  // The same after Python of a step: of a part that the step does not draw from (`draws`), what is there now may follow
  // from this by draws, which are other threads', and stays. (Where only kernels have run, Tape::moves_generator()
  // decides.)
  void put_back(const OfGeneratorParts<bool>& draws) const;
  // The same, or by draws alone, or by what other threads have set or put back: no Python of this thread has seeded or
  // set it meanwhile. Both are of one thread, or of one that works for it.
  [[nodiscard]] bool same_or_follows(GeneratorPart part, const GeneratorState& before) const;
  [[nodiscard]] bool same(GeneratorPart part, const GeneratorState& other) const;
  bool operator==(const GeneratorState& other) const;
  // Seeded, and nothing drawn since.
  [[nodiscard]] bool is_seed(GeneratorPart part) const;
  // Another state for each number of draws, which no seed leads to: stands for the unknown state after them. Of the part
  // that the last of them has moved.
  [[nodiscard]] GeneratorState marked(std::size_t draws, GeneratorPart part) const;

 private:
  explicit GeneratorState(const at::mt19937& engine) : engine_(engine) {}
  void restore(const OfGeneratorParts<bool>& parts) const;
  // Of the CPU's.
  [[nodiscard]] bool same_numbers(const GeneratorState& other) const;
  [[nodiscard]] bool engine_follows(const GeneratorState& before) const;

  // Of the accelerator.
  struct Philox {
    std::uint64_t seed = 0;
    std::uint64_t offset = 0;
    bool operator==(const Philox&) const = default;
    // By draws alone.
    [[nodiscard]] bool follows(const Philox& before) const { return seed == before.seed && offset >= before.offset; }
  };

  at::mt19937 engine_;
  std::optional<Philox> device_;  // of one that was taken before the accelerator was watched, nothing is known
  // So far, as seen by the thread that took it: how often other threads have set it, and how often Python of its own.
  OfGeneratorParts<std::uint64_t> set_by_others_, set_by_python_;
  std::optional<float> next_float_normal_;
  std::optional<double> next_double_normal_;
};

// Where a step's Python sets a part of the generator: nowhere, to where it was after so many draws of the step (as a
// checkpoint does), or to a state that comes from outside, most often a seed.
struct GeneratorJump {
  struct OfPart {
    int draws = -1;
    std::shared_ptr<const GeneratorState> state;

    [[nodiscard]] bool moves() const { return draws >= 0 || state != nullptr; }
  };
  OfGeneratorParts<OfPart> to;

  // after_draws[i]: the state after i draws of the step.
  void make(const std::vector<std::optional<GeneratorState>>& after_draws) const;
  [[nodiscard]] bool moves() const;
  bool operator==(const GeneratorJump& other) const;
  // The same but for the seed, which is a number of Python's.
  [[nodiscard]] bool same_but_seed(const GeneratorJump& other) const;
};

}  // namespace stowage::runtime
