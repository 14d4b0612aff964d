// The device's random numbers.
//
//   Settings::cpu_numbers off   state {seed, offset}, 16 bytes, as on CUDA: what an op draws is a function of both, and
//                               moves the offset by 4
//   Settings::cpu_numbers on    state and numbers of a CPU generator: a step draws what it would on the CPU
//
//   op with a Generator argument ──► gets a CPU generator that is made ready for it
//   op without (native_dropout)  ──► the default CPU generator's engine is exchanged while the op runs
//
// One Draw is alive for a generator at a time.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>

namespace standin {

const at::Generator& default_generator();
at::Generator new_generator();

// While alive, one op draws from a generator of the device (the default one, where it is not defined).
class Draw {
 public:
  // `lend`: also to who asks the default CPU generator.
  Draw(const at::Generator& from, bool lend);
  ~Draw();
  Draw(const Draw&) = delete;
  Draw& operator=(const Draw&) = delete;

  [[nodiscard]] at::Generator numbers() const { return numbers_; }

 private:
  at::Generator from_;
  std::unique_lock<std::mutex> lock_, lending_;
  at::Generator numbers_;
  at::Generator kept_;  // what the default CPU generator was
};

}  // namespace standin
