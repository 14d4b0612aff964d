// Random generators' states, saved and restored without touching the dispatcher or PyTorch's allocators: those of the
// default generators (the CPU's, and the accelerator's once steps are planned there), and of others that a step uses.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stowage::runtime {

// From now on the state is that of this device's default generator, too: Philox, which is a seed and how far it has come.
// One device in a process.
void watch_generator(c10::Device device);
// Why draws on the device, or from the generator, cannot be repeated; "" where they can.
std::string why_not_repeatable(c10::Device device);
std::string why_not_repeatable(const at::Generator& generator);

// Which generator. The parts of a state are those of several, each of which Python may move by itself:
// torch.set_rng_state() sets the CPU's alone, torch.manual_seed() seeds both default ones.
struct GeneratorPart {
  std::uintptr_t key = 0;
  auto operator<=>(const GeneratorPart&) const = default;
};
constexpr GeneratorPart kHostGenerator{1};    // the CPU's default one
constexpr GeneratorPart kDeviceGenerator{2};  // the accelerator's
// One that a step makes, or comes by: of each call another object. They are numbered as they are first drawn from.
constexpr std::size_t kMostMadeGenerators = 1000;
constexpr GeneratorPart made_generator(std::size_t number) { return {16 + number}; }
constexpr bool is_made(GeneratorPart part) { return part.key >= 16 && part.key < 16 + kMostMadeGenerators; }
// A default one, or this object.
GeneratorPart part_of(const c10::GeneratorImpl* generator);

// Something for each of some parts; elsewhere T().
template <typename T>
class OfGeneratorParts {
 public:
  [[nodiscard]] T& operator[](GeneratorPart part) {
    const auto it = find(part);
    return it != of_.end() ? it->second : of_.emplace_back(part, T()).second;
  }
  [[nodiscard]] const T& operator[](GeneratorPart part) const {
    static const T none{};
    const auto it = const_cast<OfGeneratorParts*>(this)->find(part);
    return it != of_.end() ? it->second : none;
  }
  [[nodiscard]] auto begin() const { return of_.begin(); }
  [[nodiscard]] auto end() const { return of_.end(); }
  [[nodiscard]] bool empty() const { return of_.empty(); }

 private:
  [[nodiscard]] auto find(GeneratorPart part) {
    return std::find_if(of_.begin(), of_.end(), [&](const auto& known) { return known.first == part; });
  }
  std::vector<std::pair<GeneratorPart, T>> of_;
};

// Beside the default ones. An undefined one is not known yet.
using Generators = OfGeneratorParts<at::Generator>;

// How often this thread has set generators, and how often its Python has.
struct OwnGeneratorSets {
  std::unordered_map<std::uintptr_t, std::uint64_t> all, by_python;
};
// A thread that works for another one takes that one's, and hands them back.
OwnGeneratorSets& own_generator_sets();

// Python of this thread seeds this generator, or sets it; any generator, a default one or another.
void note_set_by_python(const c10::GeneratorImpl* generator);

// Told of what this thread's Python does with states of generators, which are tensors of bytes.
class GeneratorStateListener {
 public:
  virtual ~GeneratorStateListener() = default;
  // It takes one out (Generator.get_state()).
  virtual void on_state_told(const at::Generator& generator, const at::Tensor& state) = 0;
  // A generator is about to read this one, or has read it.
  virtual void on_state_read(const at::Tensor& state, bool begins) = 0;
  // It is about to pickle this generator. May run what has been matched.
  virtual void on_pickled(const at::Generator& generator) = 0;
  // It has set this generator, in whatever way, or has made it of another one.
  virtual void on_set(const at::Generator& generator) = 0;
};
// Of this thread, or none. Returns the one before.
GeneratorStateListener* listen_to_generator_states(GeneratorStateListener* listener);
void tell_generator_state(const at::Generator& generator, const at::Tensor& state);
void tell_generator_state_read(const at::Tensor& state, bool begins);
void tell_generator_pickled(const at::Generator& generator);
void tell_generator_set(const at::Generator& generator);

class GeneratorState {
 public:
  // Of the default ones, and of these.
  static GeneratorState current(const Generators& others = {});
  // That of another generator, as it is now, as if it had been so then.
  void add(GeneratorPart part, const at::Generator& generator);
  [[nodiscard]] std::vector<GeneratorPart> parts() const;
  [[nodiscard]] bool has(GeneratorPart part) const { return find(part) != nullptr; }

  // Into the generators that they were taken from. Of parts that it does not have, nothing happens.
  void restore() const;
  void restore(GeneratorPart part) const;
  void restore(const OfGeneratorParts<bool>& parts) const;
  // Into that of `others` where it is no default one.
  void restore_into(GeneratorPart part, const Generators& others) const;
  // That of one part into the generator of another, as `now` has it.
  void restore_as(GeneratorPart part, const GeneratorState& now, GeneratorPart other) const;
  // The same after Python of a step: of a part that the step does not draw from (`draws`), what is there now may follow
  // from this by draws, which are other threads', and stays. (Where only kernels have run, Tape::moved decides.)
  void put_back(const OfGeneratorParts<bool>& draws) const;
  // As Generator.get_state() tells it. Of parts that it does not have, nothing happens.
  void write_to(GeneratorPart part, void* state, std::size_t bytes) const;
  // Of these parts alone.
  [[nodiscard]] GeneratorState only(const OfGeneratorParts<bool>& parts) const;

  // The same, or by draws alone, or by what other threads have set or put back: no Python of this thread has seeded or
  // set it meanwhile. Both are of one thread, or of one that works for it.
  [[nodiscard]] bool same_or_follows(GeneratorPart part, const GeneratorState& before) const;
  // Since it was taken, otherwise than by draws.
  [[nodiscard]] bool moved_by_python() const;
  [[nodiscard]] bool same(GeneratorPart part, const GeneratorState& other) const;
  // As that of another part is there.
  [[nodiscard]] bool same_as(GeneratorPart part, const GeneratorState& other, GeneratorPart other_part) const;
  bool operator==(const GeneratorState& other) const;
  // Seeded, and nothing drawn since.
  [[nodiscard]] bool is_seed(GeneratorPart part) const;
  // Another state for each number of draws, which no seed leads to: stands for the unknown state after them. Of the part
  // that the last of them has moved.
  [[nodiscard]] GeneratorState marked(std::size_t draws, GeneratorPart part) const;
  // Holds what is the same in both once.
  void share(const GeneratorState& other);

 private:
  struct Content;
  struct Part {
    GeneratorPart part;
    at::Generator from;
    std::shared_ptr<const Content> content;
    // So far, as seen by the thread that took it: how often other threads have set it, and how often Python of its own.
    std::uint64_t set_by_others = 0, set_by_python = 0;
  };
  static Part part_now(GeneratorPart part, const at::Generator& generator);
  static void set(const Part& part, const at::Generator& generator);
  [[nodiscard]] const Part* find(GeneratorPart part) const;

  std::vector<Part> parts_;
};

// Where a step's Python sets a part of the generators: nowhere, to where it was after so many draws of the step (as a
// checkpoint does), or to a state that comes from outside, most often a seed.
struct GeneratorJump {
  struct OfPart {
    int draws = -1;
    std::shared_ptr<const GeneratorState> state;

    [[nodiscard]] bool moves() const { return draws >= 0 || state != nullptr; }
  };
  OfGeneratorParts<OfPart> to;

  // after_draws[i]: the state after i draws of the step. others: those that the step draws from.
  void make(const std::vector<std::optional<GeneratorState>>& after_draws, const Generators& others) const;
  [[nodiscard]] bool moves() const;
  bool operator==(const GeneratorJump& other) const;
  // The same but for the seed, which is a number of Python's, and but for what a generator is that the step makes.
  [[nodiscard]] bool same_but_seed(const GeneratorJump& other) const;
};

}  // namespace stowage::runtime
