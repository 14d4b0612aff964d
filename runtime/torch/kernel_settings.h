// The settings of PyTorch that the bits of a kernel depend on, beside its arguments: precision, libraries, determinism,
// threads.
//
// A step may change them and change them back, around some of its ops:
//
//   with torch.backends.mkldnn.flags(enabled=False):     op 0  op 1 │ op 2  op 3 │ op 4
//       h = conv(x)                                       settings 0 │ settings 1 │ settings 0
//
// Python does not run in planned calls, and an op that is made again runs at another time: so each op has its settings,
// and they are made so for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/torch/kernel_threads.h"

namespace stowage::runtime {

class KernelSettings {
 public:
  // Those of the calling thread.
  static KernelSettings now();
  // Makes them so, where they differ from `now`.
  void apply(const KernelSettings& now) const;
  // What differs first, in words.
  [[nodiscard]] std::string difference(const KernelSettings& other) const;

  bool operator==(const KernelSettings&) const = default;

 private:
  static constexpr std::size_t kFlags = 19, kPrecisionCount = 9;

  std::array<bool, kFlags> flags_{};                       // in the order of kernel_settings.cpp
  std::array<std::uint8_t, kPrecisionCount> precision_{};  // of fp32, by backend and operator
  std::uint8_t matmul_ = 0;                                // precision of products, by its older name
  std::uint8_t fp16_reduction_ = 0, bf16_reduction_ = 0;
  std::uint8_t linalg_ = 0, blas_ = 0;
  std::uint16_t default_dtype_ = 0;
  KernelThreads threads_;
};

// While alive, those of `all` at `which` are set; afterwards all is as it was found. With no more than one nothing is
// done: they are set already.
class SettingsScope {
 public:
  SettingsScope(const std::vector<KernelSettings>& all, std::int32_t which);
  explicit SettingsScope(const KernelSettings& wanted);  // outlives it
  ~SettingsScope();
  SettingsScope(const SettingsScope&) = delete;
  SettingsScope& operator=(const SettingsScope&) = delete;

 private:
  const KernelSettings* made_ = nullptr;
  KernelSettings found_;
};

bool flushes_denormals();

// The position of what is set now among `all`, which it joins when it is new.
std::int32_t settings_now(std::vector<KernelSettings>& all, std::int32_t latest);

}  // namespace stowage::runtime
